"""Runs in the training process. The interface of all readers: rows in pieces."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkdl import context
from sparkdl.data import schema
from sparkdl.data.arrow_arrays import Arrays, arrow_dataset
from sparkdl.data.column_selection import ColumnSelection, inexact_message, stacked_dtype
from sparkdl.data.shard import Range
from sparkdl.data.shuffle import MIN_SLICES, SHUFFLED_RANGES, in_turn, shuffled

__all__ = ["ArrowSource", "Pass", "Source"]

_logger = logging.getLogger("sparkdl.data")


@dataclass(frozen=True)
class Pass:
    """A pass over the share of a rank.

    Attributes:
        ranges: the rows to read, in this order.
        seed: seed for shuffling the rows; None keeps their order.
    """

    ranges: tuple[Range, ...]
    seed: int | None = None


class Source(ABC):
    """Rows in pieces that can be read in any order and any number of times.

    Attributes:
        name: the source as the user would call it, such as its path.
        sizes: number of rows of each piece; the same on every rank.
        columns: names of the columns.
    """

    name: str
    sizes: Sequence[int]
    columns: Sequence[str]

    @abstractmethod
    def blocks(self, next_pass: Callable[[], Pass], names: Sequence[str]) -> Any:
        """Return a `tf.data.Dataset` of dicts from column name to a tensor (rows, *shape).

        Args:
            next_pass: called once per iteration over the dataset; returns the rows to read.
            names: names of the columns to read.
        """

    def elements(self, next_pass: Callable[[], Pass], selection: ColumnSelection) -> Any:
        """Return a `tf.data.Dataset` of features and labels, any number of rows per element.

        Args:
            next_pass: see `blocks`.
            selection: the columns to read, and their arrangement.
        """
        blocks = self.blocks(next_pass, selection.names)
        return blocks.map(lambda values: selection.pick(values, _stack_tensors))


def _stack_tensors(names: list[str], parts: list[Any]) -> Any:
    """Stack tensors of (rows,) or (rows, width) side by side into one of (rows, sum of widths)."""
    import tensorflow as tf

    dtype = tf.as_dtype(stacked_dtype([part.dtype.as_numpy_dtype for part in parts]))
    flat = []
    for name, part in zip(names, parts, strict=True):
        cast = tf.cast(part, dtype)
        if part.dtype.is_integer and dtype.is_floating:
            message = inexact_message(names, name, "a number", dtype.as_numpy_dtype)
            exact = tf.debugging.assert_equal(tf.cast(cast, part.dtype), part, message)
            with tf.control_dependencies([exact] if exact is not None else []):
                cast = tf.identity(cast)
        flat.append(cast[:, None] if part.shape.rank == 1 else cast)
    return tf.concat(flat, -1)


class ArrowSource(Source):
    """A source that reads Arrow batches.

    Attributes:
        schema: names and Arrow types of the columns.
        options: the arguments `ragged`, `decode` and `fill` of `schema.column`.
        window_rows: number of rows that are shuffled together.
    """

    schema: pa.Schema
    options: Mapping[str, Any]
    window_rows: int = 1 << 16

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        """The names of the columns."""
        names: list[str] = self.schema.names
        return names

    @abstractmethod
    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `ranges` in batches of any number of rows.

        Args:
            ranges: the rows to read, in this order.
            names: names of the columns to read.
        """

    def blocks(self, next_pass: Callable[[], Pass], names: Sequence[str]) -> Any:
        """Implement `Source.blocks`."""
        return self.elements(next_pass, ColumnSelection({name: name for name in names}))

    def elements(self, next_pass: Callable[[], Pass], selection: ColumnSelection) -> Any:
        """Implement `Source.elements` with NumPy arrays, which is faster than with tensors."""
        arrays = Arrays(schema.columns(self.schema, selection.names, **self.options), selection)
        first = [Range(piece, 0, 1) for piece, rows in enumerate(self.sizes) if rows][:1]
        for batch in self.read(first, selection.names):
            arrays.learn(batch)
        text = schema.describe_conversions(self.schema, selection.names)
        if text and context.current().is_chief:
            _logger.info("%s: %s", self.name, text)

        def batches() -> Iterator[pa.RecordBatch]:
            return self.ordered(next_pass(), selection.names)

        return arrow_dataset(batches, arrays)

    def ordered(self, current: Pass, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a pass, shuffled if it has a seed.

        Args:
            current: the pass.
            names: names of the columns to read.
        """
        if current.seed is None:
            return self.read(current.ranges, names)
        parts = (current.ranges[number::SHUFFLED_RANGES] for number in range(SHUFFLED_RANGES))
        readers = [self.read(part, names) for part in parts if part]
        rows = in_turn(readers, max(self.window_rows // MIN_SLICES, 1))
        return shuffled(rows, self.window_rows, current.seed)
