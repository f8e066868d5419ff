"""Runs in a Spark task. Make a table of the requests in the lines of a log."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from sparkdl.monitoring.logs.counting import LogRows, events_of, served_events
from sparkdl.monitoring.logs.held_requests import Read
from sparkdl.monitoring.logs.log_forms import Event

ID_COLUMNS = ("id", "row", "time", "version")
# What brings the events of a request together, in the order of their times.
ORDER_COLUMNS = ("sparkdl_id", "sparkdl_time", "sparkdl_is_answer")
# Requests of one batch.
MAX_REQUESTS = 1024


@dataclass(frozen=True)
class LogOrder:
    """A function for `mapInArrow` that adds `ORDER_COLUMNS` to the lines of a model.

    Attributes:
        rows: the features and the model.
    """

    rows: LogRows

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the lines of the model in batches with these columns before the others."""
        for batch in batches:
            events = [event for event, _ in events_of(batch)]
            mask = [isinstance(e, Event) and self.rows.is_of_model(e) for e in events]
            ours = [event for event in events if isinstance(event, Event)]
            ours = [event for event in ours if self.rows.is_of_model(event)]
            arrays = [
                pa.array([event.id for event in ours], pa.string()),
                pa.array([event.time_ms for event in ours], pa.int64()),
                pa.array([event.inputs is None for event in ours], pa.bool_()),
                *batch.filter(pa.array(mask, pa.bool_())).columns,
            ]
            yield pa.RecordBatch.from_arrays(arrays, [*ORDER_COLUMNS, *batch.schema.names])


@dataclass(frozen=True)
class LogTable:
    """A function for `mapInArrow` that makes a table of the lines of a log.

    A request and its answer are joined if both are in the same partition.

    Attributes:
        rows: the features and the model.
    """

    rows: LogRows

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each row of a request: `ID_COLUMNS`, and numbered columns of features."""
        served = map(_join, served_events(batches, self._values))
        while reads := list(islice(served, MAX_REQUESTS)):
            yield self._table(reads)

    def _values(self, event: Event | str, _: Mapping[str, Any]) -> dict[str, list[Any]] | None:
        return None if isinstance(event, str) else self.rows.rows(event)

    def _table(self, reads: Sequence[Read]) -> pa.RecordBatch:
        rows = [
            (event, number)
            for event, values in reads
            for number in range(len(next(iter(values.values()))))
        ]
        arrays = [
            pa.array([event.id for event, _ in rows], pa.string()),
            pa.array([number for _, number in rows], pa.int32()),
            pa.array([event.time_ms * 1000 for event, _ in rows], pa.timestamp("us", "UTC")),
            pa.array([event.version for event, _ in rows], pa.int64()),
            *self.rows.arrays([values for _, values in reads]),
        ]
        names = [*ID_COLUMNS, *(f"c{number}" for number in range(len(self.rows.places)))]
        return pa.RecordBatch.from_arrays(arrays, names)


def _join(reads: Sequence[Read]) -> Read:
    """Return a request with the values of its answer; the side with fewer rows gets nulls."""
    values = {name: column for _, columns in reads for name, column in columns.items()}
    num = max(map(len, values.values()))
    return reads[0][0], {
        name: [*column, *[None] * (num - len(column))] for name, column in values.items()
    }
