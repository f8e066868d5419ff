"""Runs in a Spark task. Count the features of the requests in a log, by window and version."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.monitoring.logs.held_requests import HeldRequests, Read
from sparkdl.monitoring.logs.log_forms import Event, read_event
from sparkdl.monitoring.logs.places import Place, rows_of
from sparkdl.profiles import BinCounter

COUNTS_SCHEMA = "time timestamp, version long, feature int, part string, bin int, num long"
# Numbers in place of a feature, for lines that are left out: those that cannot be read, and those
# whose time lies too far in the future. Their part is an example.
UNREADABLE, AHEAD = -1, -2
# The number of a tick in place of a feature, see tick_source.py.
TICK = -3
# Characters of a line in an example.
EXAMPLE_LENGTH = 120

_TYPES = {"number": pa.float64(), "category": pa.string(), "array": pa.list_(pa.float64())}
# Rows of one batch.
MAX_ROWS = 4096

# The start of the window, the version, and the side of the events: inputs, outputs, or both.
_Group = tuple[int, int | None, str]


def events_of(batch: pa.RecordBatch) -> Iterator[tuple[Event | str, Mapping[str, Any]]]:
    """Yield the event of each line, or the reason why the line is none, and the row of the line.

    Args:
        batch: the columns `value`, those that tell the place of a line and, of records of Kafka,
            `headers` and `timestamp`.
    """
    names = batch.schema.names
    columns = [batch.column(name).to_pylist() for name in names]
    for values in zip(*columns, strict=True):
        row = dict(zip(names, values, strict=True))
        headers = {
            header["key"]: (header["value"] or b"").decode(errors="replace")
            for header in row.get("headers") or ()
        }
        moment = row.get("timestamp")
        try:
            time_ms = None if moment is None else int(moment.timestamp() * 1000)
            yield read_event(row["value"] or b"", headers, time_ms), row
        except ValueError as exc:
            yield str(exc), row


def served_events(
    batches: Iterable[pa.RecordBatch],
    values_of: Callable[[Event | str, Mapping[str, Any]], dict[str, list[Any]] | None],
) -> Iterator[list[Read]]:
    """Yield the events of a partition that were served, see `HeldRequests`.

    Args:
        batches: the lines, see `events_of`.
        values_of: returns the values by feature of an event, or of the fault of a line; none if
            the event is left out.

    Yields:
        An event, or a request and its answer, each with its values.
    """
    requests = HeldRequests()
    for batch in batches:
        for event, line in events_of(batch):
            rows = values_of(event, line)
            if not isinstance(event, str):
                yield from requests.served(event, rows or {})
    yield from requests.unpaired()


def example(row: Mapping[str, Any], reason: str) -> str:
    """Return the place, the fault and the beginning of a line.

    Example:
        >>> example({"file": "a.jsonl", "offset": 7, "value": b"oops"}, "it is no JSON")
        "a.jsonl, byte 7: it is no JSON: 'oops'"
    """
    place = f"{row['file']}, byte" if "file" in row else f"partition {row.get('partition')}, offset"
    text = (row["value"] or b"")[:EXAMPLE_LENGTH].decode(errors="replace")
    reason = reason[:EXAMPLE_LENGTH].encode(errors="backslashreplace").decode()
    return f"{place} {row.get('offset')}: {reason}: {text!r}"


@dataclass(frozen=True)
class LogRows:
    """A function that makes columns of features of events.

    Attributes:
        places: the features.
        model: the name of the model whose events are taken; None for all.
        since_ms: the time, in milliseconds since 1970, from which on events are taken.
    """

    places: tuple[Place, ...]
    model: str | None = None
    since_ms: int = 0

    def rows(self, event: Event) -> dict[str, list[Any]] | None:
        """Return the values of an event by feature, see `rows_of`; none of other events."""
        if event.is_refused or not self.is_of_model(event):
            return {}
        try:
            return rows_of(event, self.places)
        except OverflowError:
            return None

    def is_of_model(self, event: Event) -> bool:
        """Return True if an event is one of the model itself, and not too old."""
        is_other = event.component or (self.model is not None and event.model != self.model)
        return not is_other and event.time_ms >= self.since_ms

    def arrays(self, rows: Sequence[dict[str, list[Any]]]) -> list[pa.Array]:
        """Return the columns of the rows of several events."""
        # An event without values is a row of nulls.
        sizes = [len(next(iter(values.values()))) if values else 1 for values in rows]
        return [
            pa.array(
                [
                    value
                    for values, size in zip(rows, sizes, strict=True)
                    for value in values.get(place.feature) or [None] * size
                ],
                _TYPES[place.kind],
            )
            for place in self.places
        ]


@dataclass(frozen=True)
class LogCounter:
    """A function for `mapInArrow` that counts the features of the requests in lines of a log.

    Attributes:
        rows: the features and the model.
        counter: the bins of the features, which are in the columns of the places.
        window_ms: milliseconds of a window.
        ahead_ms: milliseconds that the time of an event may be ahead of the clock. An event that is
            further ahead would end all windows before it, and is left out.
    """

    rows: LogRows
    counter: BinCounter
    window_ms: int
    ahead_ms: int = 60_000

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of the newest time, the version, the feature, the part, the bin, the number.

        The time of a row is that of the newest event in the same partition, window and version.
        """
        state = _State(self)
        for counted in self.counter(state.batches(batches)):
            key, newest = state.groups[counted.column(0)[0].as_py()]
            if self._is_of_side(counted.column(1)[0].as_py(), key[2]):
                yield _result(newest, key[1], counted)
        for kind, (num, text) in state.left_out.items():
            numbers = {"feature": [kind], "part": [text], "bin": [0], "num": [num]}
            yield _result(0, None, pa.RecordBatch.from_pydict(numbers))

    def _is_of_side(self, feature: int, side: str) -> bool:
        place = self.rows.places[self.counter.columns[feature]]
        return side in ("both", "outputs" if place.is_output else "inputs")


class _State:
    """The groups of the events of a partition, found while the events are read."""

    def __init__(self, counter: LogCounter) -> None:
        self._counter = counter
        self._numbers: dict[_Group, int] = {}
        self._newest: list[int] = []
        self._last_ms = int(time.time() * 1000) + counter.ahead_ms
        # The number of the lines that are left out, and an example, by their kind.
        self.left_out: dict[int, tuple[int, str]] = {}

    @property
    def groups(self) -> list[tuple[_Group, int]]:
        """The groups, each with the time of its newest event."""
        return list(zip(self._numbers, self._newest, strict=True))

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the number of the group and the features."""
        numbers: list[int] = []
        values: list[dict[str, list[Any]]] = []
        for event, rows in chain.from_iterable(served_events(batches, self._rows)):
            size = len(next(iter(rows.values())))
            if size:
                numbers += [self._number(event)] * size
                values.append(rows)
            if len(numbers) >= MAX_ROWS:
                yield self._batch(numbers, values)
                numbers = []
                values = []
        if numbers:
            yield self._batch(numbers, values)

    def _rows(self, event: Event | str, line: Mapping[str, Any]) -> dict[str, list[Any]] | None:
        """Return the values of an event by feature; none of a line that is left out."""
        if isinstance(event, str):
            self._leave_out(UNREADABLE, line, event)
            return None
        rows = self._counter.rows
        if event.time_ms > self._last_ms and rows.is_of_model(event):
            moment = datetime.fromtimestamp(event.time_ms / 1000, timezone.utc)
            self._leave_out(AHEAD, line, f"its time is {moment:%Y-%m-%d %H:%M} UTC")
            return None
        values = rows.rows(event)
        if values is None:
            self._leave_out(UNREADABLE, line, "it has none of the features")
        return values

    def _leave_out(self, kind: int, line: Mapping[str, Any], reason: str) -> None:
        num, text = self.left_out.get(kind, (0, ""))
        self.left_out[kind] = num + 1, text or example(line, reason)

    def _number(self, event: Event) -> int:
        side = "both"
        if event.inputs is None or event.outputs is None:
            side = "outputs" if event.inputs is None else "inputs"
        start = event.time_ms // self._counter.window_ms
        number = self._numbers.setdefault((start, event.version, side), len(self._numbers))
        if number == len(self._newest):
            self._newest.append(event.time_ms)
        self._newest[number] = max(self._newest[number], event.time_ms)
        return number

    def _batch(self, numbers: list[int], columns: list[dict[str, list[Any]]]) -> pa.RecordBatch:
        arrays = [pa.array(numbers, pa.int64()), *self._counter.rows.arrays(columns)]
        return pa.RecordBatch.from_arrays(arrays, [f"c{i}" for i in range(len(arrays))])


def _result(time_ms: int, version: int | None, counts: pa.RecordBatch) -> pa.RecordBatch:
    size = counts.num_rows
    return pa.RecordBatch.from_pydict(
        {
            "time": pa.array(np.full(size, time_ms * 1000), pa.timestamp("us", "UTC")),
            "version": pa.array([version] * size, pa.int64()),
            "feature": counts.column("feature").cast(pa.int32()),
            "part": counts.column("part"),
            "bin": counts.column("bin").cast(pa.int32()),
            "num": counts.column("num").cast(pa.int64()),
        }
    )
