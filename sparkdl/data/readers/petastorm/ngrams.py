"""Runs in the training process. Sequences of consecutive rows, as `NGram` of petastorm has them.

A sequence never goes beyond its row group, whose rows must be sorted by time. Source:
`petastorm/ngram.py` of petastorm 0.13.1.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from sparkdl.data.agreed_pieces import Call, agree_on_sizes
from sparkdl.data.readers.base import ArrowSource, DerivedSource, ReadColumns
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError


def is_ngram(value: Any) -> bool:
    """Return True for an `NGram`."""
    return all(hasattr(value, name) for name in ("fields", "delta_threshold", "timestamp_overlap"))


def stored_names(ngram: Any) -> list[str] | None:
    """Return the names of the columns that an `NGram` needs; None if it has regular expressions."""
    fields = [field for step in ngram.fields.values() for field in step]
    fields.append(ngram._timestamp_field)
    if any(isinstance(field, str) for field in fields):
        return None
    return list(dict.fromkeys(field.name for field in fields))


@dataclass(frozen=True)
class SequenceForm:
    """The rows that make a sequence, and their columns.

    Attributes:
        steps: names of the columns of each row of a sequence, by its offset.
        time: name of the column with the time of a row.
        max_gap: largest difference between the times of consecutive rows.
        overlaps: False if each row may belong to one sequence only.
    """

    steps: Mapping[int, Sequence[str]]
    time: str
    max_gap: float
    overlaps: bool

    @classmethod
    def of(cls, ngram: Any, names: Sequence[str]) -> "SequenceForm":
        """Create from an `NGram`.

        Args:
            ngram: the `NGram`; its fields are fields of a Unischema, or regular expressions.
            names: names of the columns of the data.

        Raises:
            ConfigError: if a field does not exist.
        """

        def matches(field: Any) -> list[str]:
            pattern = field if isinstance(field, str) else re.escape(field.name)
            matching = [name for name in names if re.fullmatch(pattern, name)]
            if not matching:
                raise ConfigError(
                    f"the NGram has the field {getattr(field, 'name', field)!r}, which is not a "
                    f"column. Columns are {', '.join(names)}."
                )
            return matching

        steps = {
            offset: list(dict.fromkeys(name for field in fields for name in matches(field)))
            for offset, fields in sorted(ngram.fields.items())
        }
        (time, *others) = matches(ngram._timestamp_field)
        if others:
            raise ConfigError(f"the NGram has several columns of time: {time}, {others[0]}.")
        return cls(steps, time, ngram.delta_threshold, ngram.timestamp_overlap)

    @property
    def length(self) -> int:
        """The number of rows of a sequence."""
        return max(self.steps) - min(self.steps) + 1

    @property
    def columns(self) -> dict[str, tuple[str, int]]:
        """The stored column, and the place in the sequence, of each column, by its name."""
        first = min(self.steps)
        return {
            f"{name}[{offset}]": (name, offset - first)
            for offset, names in self.steps.items()
            for name in names
        }

    def starts(self, times: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """Return the numbers of the rows with which sequences begin.

        Args:
            times: the times of the rows of a row group, in ascending order.

        Raises:
            ValueError: if the times are not in ascending order.

        Example:
            >>> SequenceForm({0: ["x"], 1: ["x"]}, "t", 4, True).starts(np.array([0, 3, 8, 10]))
            array([0, 2])
        """
        gaps = np.diff(times.astype(np.int64) if times.dtype.kind == "u" else times)
        if (gaps < 0).any():
            raise ValueError(
                f"column {self.time!r} is not sorted within a row group, so that an NGram has no "
                "consecutive rows. Write rows in its order: df.sortWithinPartitions."
            )
        num_wide = np.concatenate([[0], np.cumsum(gaps > self.max_gap)])
        last = len(times) - self.length
        firsts = np.arange(max(last + 1, 0))
        starts: np.ndarray[Any, Any] = firsts[
            num_wide[firsts + self.length - 1] == num_wide[firsts]
        ]
        if self.overlaps:
            return starts
        apart: list[int] = []
        for start in starts.tolist():
            if not apart or times[start] > times[apart[-1] + self.length - 1]:
                apart.append(start)
        return np.array(apart, np.int64)


class RowSequences(DerivedSource):
    """The sequences of rows of another source; the pieces are those of the source.

    The first rank reads the times of all rows once to count the sequences, for all ranks; in an
    elastic gang, each rank does. A column is named as `x[-1]`, for `x` of the row at offset -1.

    Args:
        source: the rows.
        form: the rows that make a sequence.

    Raises:
        ConfigError: if times are not numbers.
    """

    def __init__(self, source: ArrowSource, form: SequenceForm) -> None:
        kind = source.schema.field(form.time).type
        if not types.is_integer(kind) and not types.is_floating(kind):
            raise ConfigError(f"times of an NGram are in {form.time!r}, {kind}; expected numbers.")
        super().__init__(source)
        self._form = form
        self._columns = form.columns
        fields = {
            name: source.schema.field(stored_name)
            for name, (stored_name, _) in self._columns.items()
        }
        self.schema = pa.schema([field.with_name(name) for name, field in fields.items()])
        self.options = {
            key: self._with_names_of_sequences(value) for key, value in source.options.items()
        }
        self.sizes = self._counts()

    def _with_names_of_sequences(self, option: Any) -> Any:
        """Return the value of an option, which has stored columns, for those of sequences."""
        if isinstance(option, Mapping):
            return {
                n: option[stored_name]
                for n, (stored_name, _) in self._columns.items()
                if stored_name in option
            }
        return [
            name
            for name, (stored_name, _) in self._columns.items()
            if stored_name in (option or ())
        ]

    def _counts(self) -> list[int]:
        def count() -> list[int]:
            pieces = range(len(self._source.sizes))
            return [len(self._form.starts(self._times(piece))) for piece in pieces]

        return agree_on_sizes(Call("sequences of an NGram", {"form": repr(self._form)}), count)

    def _times(self, piece: int) -> "np.ndarray[Any, Any]":
        rows = self._source.sizes[piece]
        parts = [np.empty(0)]
        for batch in self._source.read([Range(piece, 0, rows)] if rows else [], [self._form.time]):
            if batch.column(0).null_count:
                raise ValueError(f"column {self._form.time!r} has nulls; an NGram needs times.")
            parts.append(batch.column(0).to_numpy(zero_copy_only=False))
        return np.concatenate(parts[1:] or parts)

    def derive(
        self, part: Range, names: Sequence[str], read: ReadColumns
    ) -> Iterator[pa.RecordBatch]:
        """Implement `DerivedSource.derive`; the times of a piece are read first."""
        starts = self._form.starts(self._times(part.piece))[part.start : part.stop]
        if len(starts) != part.stop - part.start:
            raise ValueError(f"{self.name} has fewer sequences than were counted. Start again.")
        if not len(starts):
            return
        stored_names = list(dict.fromkeys(self._columns[name][0] for name in names))
        length, begin, num_yielded = self._form.length, int(starts[0]), 0
        rows = Range(part.piece, begin, int(starts[-1]) + length)
        window: list[pa.RecordBatch] = []
        with closing(read([rows], stored_names)) as batches:  # type: ignore[type-var]
            for batch in batches:
                window = [pa.concat_batches([*window, batch])]
                end = begin + window[0].num_rows
                stop = int(np.searchsorted(starts, end - length, "right"))
                if stop > num_yielded:
                    yield self._sequences(window[0], starts[num_yielded:stop] - begin, names)
                    num_yielded = stop
                # Rows before the next sequence are not needed any more.
                num_used = (int(starts[num_yielded]) if num_yielded < len(starts) else end) - begin
                window, begin = (
                    [window[0].slice(num_used)],
                    begin + min(num_used, window[0].num_rows),
                )

    def _sequences(
        self, rows: pa.RecordBatch, starts: "np.ndarray[Any, Any]", names: Sequence[str]
    ) -> pa.RecordBatch:
        columns = (self._columns[name] for name in names)
        values = [
            rows.column(stored_name).take(pa.array(starts + place))
            for stored_name, place in columns
        ]
        return pa.RecordBatch.from_arrays(values, names=list(names))
