"""Runs in a Spark task. Make a table of the requests in the lines of a log."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkdl.request_logs.counting import LogRows, events_of
from sparkdl.request_logs.log_forms import Event

__all__ = ["ID_COLUMNS", "REFUSED_ROW", "LogTable"]

ID_COLUMNS = ("id", "row", "time", "version")
# The number of the row that stands for an answer with an error.
REFUSED_ROW = -1


@dataclass(frozen=True)
class LogTable:
    """A function for `mapInArrow` that makes a table of the lines of a log.

    Attributes:
        rows: the features and the model.
        has_two_events: an event tells of a request or of its answer. A row with the number
            `REFUSED_ROW` then tells of an answer with an error.
    """

    rows: LogRows
    has_two_events: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each row of a request: `ID_COLUMNS`, and numbered columns of features."""
        for batch in batches:
            found: list[tuple[Event, dict[str, list[Any]]]] = []
            for event, _ in events_of(batch):
                if isinstance(event, str):
                    continue
                if values := self.rows.rows(event):
                    found.append((event, values))
                elif self.has_two_events and event.is_refused and self.rows.is_of_model(event):
                    found.append((event, {}))
            if found:
                yield self._table(found)

    def _table(self, found: Sequence[tuple[Event, dict[str, list[Any]]]]) -> pa.RecordBatch:
        rows = [
            (event, number)
            for event, values in found
            for number in (range(len(next(iter(values.values())))) if values else [REFUSED_ROW])
        ]
        arrays = [
            pa.array([event.id for event, _ in rows], pa.string()),
            pa.array([number for _, number in rows], pa.int32()),
            pa.array([event.time_ms * 1000 for event, _ in rows], pa.timestamp("us", "UTC")),
            pa.array([event.version for event, _ in rows], pa.int64()),
            *self.rows.arrays([values for _, values in found]),
        ]
        names = [*ID_COLUMNS, *(f"c{number}" for number in range(len(self.rows.places)))]
        return pa.RecordBatch.from_arrays(arrays, names)
