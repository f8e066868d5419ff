"""Runs in the training process. Read only the rows that splits and conditions choose."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sparkdl.data.agreed_pieces import Call, agree_on_sizes
from sparkdl.data.readers.base import ArrowSource, DerivedSource, ReadColumns, Source
from sparkdl.data.row_condition import RowCondition
from sparkdl.data.row_predicate import RowPredicate
from sparkdl.data.row_split import RowSplit
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError


class RowTest(Protocol):
    """A choice of rows by the values of columns."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns."""

    def check(self, schema: pa.Schema) -> None:
        """Validate the columns."""

    @property
    def mask(self) -> Callable[..., "np.ndarray[Any, Any]"]:
        """A function of the values of each column, which returns an array (rows,) of bool."""


def row_tests(split: Any, where: Any) -> list[RowTest]:
    """Return the tests that a row must pass to be read.

    Args:
        split, where: see `sparkdl.data.batching.Batches`; None reads all rows.

    Raises:
        ConfigError: if an argument is invalid.
    """
    tests: list[RowTest] = [] if split is None else [RowSplit.parse(split)]
    if RowPredicate.fits(where):
        return [*tests, RowPredicate(where)]
    return tests if where is None else [*tests, *RowCondition.parse(where)]


def chosen_rows(source: Source, tests: Sequence[RowTest]) -> Source:
    """Return the rows of a source that pass all tests.

    The first rank reads the columns of the tests once to count rows, for all ranks; in an elastic
    gang, each rank does.

    Args:
        source: all rows.
        tests: the tests; without one the source is returned.

    Raises:
        ConfigError: if the source has no columns of Arrow, or a column cannot be tested.
    """
    if not tests:
        return source
    if not isinstance(source, ArrowSource):
        raise ConfigError(
            f"split= and where= are for data.parquet, csv and petastorm; {source.name} is read by "
            "TensorFlow. Write the rows of each split to files of their own, or as Parquet."
        )
    for test in tests:
        test.check(source.schema)
    columns = list(dict.fromkeys(name for test in tests for name in test.columns))
    call = Call("rows that split= and where= choose", {"columns": columns})
    sizes = agree_on_sizes(call, lambda: list(_counts(source, tests, columns)))
    return ChosenRows(source, tests, columns, sizes)


def _counts(source: ArrowSource, tests: Sequence[RowTest], columns: Sequence[str]) -> Iterator[int]:
    """Yield the number of rows of each piece that pass all tests."""
    for piece, rows in enumerate(source.sizes):
        batches = source.read([Range(piece, 0, rows)] if rows else [], columns)
        yield sum(int(_mask(tests, batch).sum()) for batch in batches)


def _mask(tests: Sequence[RowTest], batch: pa.RecordBatch) -> "np.ndarray[Any, Any]":
    masks = [test.mask(*map(batch.column, test.columns)) for test in tests]
    mask: np.ndarray[Any, Any] = np.logical_and.reduce(masks)
    return mask


class ChosenRows(DerivedSource):
    """The rows of another source that pass all tests; the pieces are those of the source.

    Args:
        source: all rows.
        tests: the tests.
        columns: names of the columns of the tests.
        sizes: number of rows of each piece that pass.
    """

    def __init__(
        self,
        source: ArrowSource,
        tests: Sequence[RowTest],
        columns: Sequence[str],
        sizes: Sequence[int],
    ) -> None:
        super().__init__(source)
        self.sizes = sizes
        self.schema = source.schema
        self.options = source.options
        self._tests = tests
        self._columns = columns

    def derive(
        self, part: Range, names: Sequence[str], read: ReadColumns
    ) -> Iterator[pa.RecordBatch]:
        """Implement `DerivedSource.derive`; a piece is read from its start."""
        names_to_read = list(dict.fromkeys([*names, *self._columns]))
        whole = Range(part.piece, 0, self._source.sizes[part.piece])
        position = 0
        with closing(read([whole], names_to_read)) as batches:  # type: ignore[type-var]
            for batch in batches:
                passing = batch.filter(pa.array(_mask(self._tests, batch)))
                start = max(part.start - position, 0)
                rows = passing.slice(start, max(part.stop - position - start, 0))
                position += passing.num_rows
                if rows.num_rows:
                    yield rows.select(list(names))
                if position >= part.stop:
                    return
        raise ValueError(
            f"{self.name} has {position} rows in a piece that pass split= and where=, and had more "
            "when they were counted. A function of where= must give the same result each time."
        )
