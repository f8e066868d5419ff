"""Runs in the training process. The interface of all readers: rows in pieces."""

import functools
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types

from sparkdl import context
from sparkdl.data import schema
from sparkdl.data.arrow_arrays import Arrays
from sparkdl.data.blocks import ArrowBlocks, Blocks, TensorBlocks
from sparkdl.data.column_selection import ColumnSelection, inexact_message, stacked_dtype
from sparkdl.data.exact_numbers import cast_tensor
from sparkdl.data.lanes import Lane, Pass
from sparkdl.data.readers.decoded_pieces import DecodedPieces
from sparkdl.data.shard import Range
from sparkdl.data.shuffle import shuffled

_logger = logging.getLogger("sparkdl.data")


class Source(ABC):
    """Rows in pieces that can be read in any order and any number of times.

    Attributes:
        name: the source as the user would call it, such as its path.
        sizes: number of rows of each piece; the same on every rank.
        columns: names of the columns.
        schema: names and Arrow types of the columns; None if TensorFlow reads the source.
        options: the arguments of the reader that are about columns, by name.
    """

    name: str
    sizes: Sequence[int]
    columns: Sequence[str]
    schema: pa.Schema | None = None
    options: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def blocks(self, next_pass: Callable[[], Pass], selection: ColumnSelection) -> Blocks:
        """Return features and labels in blocks of any number of rows.

        Args:
            next_pass: called once per iteration over the blocks; returns the rows to read.
            selection: the columns to read, and their arrangement.
        """


class TensorSource(Source):
    """A source that TensorFlow reads."""

    @abstractmethod
    def columns_of(self, next_pass: Callable[[], Pass], names: Sequence[str]) -> Any:
        """Return a `tf.data.Dataset` of dicts from column name to a tensor (rows, *shape).

        Args:
            next_pass: called once per iteration over the dataset; returns the rows to read.
            names: names of the columns to read.
        """

    def blocks(self, next_pass: Callable[[], Pass], selection: ColumnSelection) -> Blocks:
        """Implement `Source.blocks`."""

        def make() -> Any:
            columns = self.columns_of(next_pass, selection.names)
            return columns.map(lambda values: selection.pick(values, _stack_tensors))

        return TensorBlocks(make)


def _stack_tensors(names: list[str], parts: list[Any]) -> Any:
    """Stack tensors of (rows,) or (rows, width) side by side into one of (rows, sum of widths)."""
    import tensorflow as tf

    dtype = tf.as_dtype(stacked_dtype([part.dtype.as_numpy_dtype for part in parts]))
    flat = []
    for name, part in zip(names, parts, strict=True):
        message = functools.partial(inexact_message, names, name, dtype=dtype.as_numpy_dtype)
        cast = cast_tensor(part, dtype, message)
        flat.append(cast[:, None] if part.shape.rank == 1 else cast)
    return tf.concat(flat, -1)


class ArrowSource(Source):
    """A source that reads Arrow batches.

    Attributes:
        schema: names and Arrow types of the columns.
        options: the arguments `ragged`, `decode`, `fill` and `pad` of `schema.column`.
        is_fresh: True if all batches are in different memory that nothing else reads.
    """

    schema: pa.Schema
    options: Mapping[str, Any]
    is_fresh: bool = False

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

    def blocks(self, next_pass: Callable[[], Pass], selection: ColumnSelection) -> Blocks:
        """Implement `Source.blocks`; the shapes are those of the first row."""
        try:
            columns = schema.columns(self.schema, selection.names, **self.options)
        except schema.UnsupportedType as exc:
            raise schema.UnsupportedType(f"{self.name}: {exc}") from None
        arrays = Arrays(columns, selection)
        first = [Range(piece, 0, 1) for piece, rows in enumerate(self.sizes) if rows][:1]
        for batch in self.read(first, selection.names):
            arrays.learn(batch)
        text = schema.describe_conversions(self.schema, selection.names)
        if text and context.current().is_chief:
            _logger.info("%s: %s", self.name, text)

        def batches() -> Iterator[pa.RecordBatch]:
            return self.read_pass(next_pass(), selection.names)

        return ArrowBlocks(batches, arrays, self.is_fresh)

    def read_pass(self, current: Pass, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a pass.

        Args:
            current: the pass.
            names: names of the columns to read.
        """
        if not current.is_shuffled:
            return self.read(current.ranges, names)
        return mixed(
            self.from_first_window(current, names), lambda ranges: self.read(ranges, names)
        )

    def from_first_window(self, current: Pass, names: Sequence[str]) -> Pass:
        """Return a shuffled pass without the windows before its first row, see `Pass`.

        Args:
            current: the pass.
            names: names of the columns to read.
        """
        return current.from_first_window(
            sum(_value_bytes(self.schema.field(name).type) for name in names)
        )


class DerivedSource(ArrowSource):
    """Rows that are derived from those of another source, one piece from each of its pieces.

    Args:
        source: the other source.
    """

    def __init__(self, source: ArrowSource) -> None:
        self.name = source.name
        self._source = source

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `ArrowSource.read`."""
        for part in ranges:
            yield from self.derive(part, names, self._source.read)

    @abstractmethod
    def derive(
        self, part: Range, names: Sequence[str], read: "ReadColumns"
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range.

        Args:
            part: the rows of this source.
            names: names of the columns of this source.
            read: reads rows of the other source.
        """


ReadColumns: TypeAlias = Callable[[Sequence[Range], Sequence[str]], Iterator[pa.RecordBatch]]
Read: TypeAlias = Callable[[Sequence[Range]], Iterator[pa.RecordBatch]]


def mixed(current: Pass, read: Read) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a shuffled pass, and of the passes that follow it.

    Args:
        current: the pass.
        read: yields the rows of ranges, in this order.
    """
    first: pa.RecordBatch | None = None
    part: Pass | None = current
    while part is not None:
        if first is not None and (part.lanes, part.start) == (current.lanes, current.start):
            yield first  # A row that is repeated at the end, so that ranks have equal numbers.
        else:
            with closing(_mixed(part, read)) as batches:  # type: ignore[type-var]
                for batch in batches:
                    if first is None and part.following:
                        first = batch.take(pa.array([0]))  # Memory of its own.
                    yield batch
        part = part.following


def _mixed(current: Pass, read: Read) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one pass; each piece is read once, and then read from its copy."""
    section_rows = current.section_rows
    decoded = DecodedPieces(lambda part: read([part]), current.lanes, section_rows)

    def rows(lane: Lane) -> Iterator[pa.RecordBatch]:
        for section in lane.sections(section_rows):
            yield from decoded.rows(section)

    lanes = [(rows(lane), _random(lane, current.chunk_rows)) for lane in current.lanes]
    batches = shuffled(lanes, current.chunk_rows, current.chunk_bytes, current.start)
    num_left = math.inf if current.stop is None else current.stop - current.start
    with closing(read_ahead(batches)) as ahead:  # type: ignore[type-var]
        for batch in ahead:
            yield batch.slice(0, min(batch.num_rows, num_left))
            num_left -= batch.num_rows
            if num_left <= 0:
                return


def _random(lane: Lane, chunk_rows: int) -> np.random.Generator:
    """Return the source of the order of a lane's rows, after the chunks that are left out."""
    random = np.random.default_rng(lane.seed or 0)
    for _ in range(lane.num_skipped // chunk_rows):
        random.permutation(chunk_rows)
    return random


def _value_bytes(kind: pa.DataType) -> float:
    """Return the largest number of bytes of a value, with a byte that tells if it is null."""
    if types.is_fixed_size_list(kind):
        size: int = kind.list_size
        return 1 + size * _value_bytes(kind.value_type)
    is_fixed = types.is_primitive(kind) or types.is_fixed_size_binary(kind)
    bits: float = kind.bit_width if is_fixed else math.inf
    return 2 + bits / 8


def read_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches; while one is used, a thread reads the next.

    Args:
        batches: a generator of batches, which is closed at the end.
    """
    with closing(batches), ThreadPoolExecutor(1, "sparkdl-read-ahead") as reader:  # type: ignore[type-var]
        pending = reader.submit(next, batches, None)
        while (batch := pending.result()) is not None:
            pending = reader.submit(next, batches, None)
            yield batch
