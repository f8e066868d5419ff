"""Runs in a Spark task. Summarise the columns of a partition, and add summaries up."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.profiles.categories import Categories
from sparkdl.profiles.distribution import MAX_RANGES, Distribution
from sparkdl.profiles.elements import (
    MANY_SIZES,
    NO_SIZE,
    WHOLE,
    Choice,
    chosen,
    matrix_of,
    sizes_of,
)
from sparkdl.profiles.moments import Moments

# Values are summarised in portions of this number; those of an element of arrays, of which a task
# holds many, in smaller ones.
PORTION = 1 << 18
ELEMENT_PORTION = 1 << 15

SUMMARY_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        *((name, pa.int64()) for name in ("column", "size", "element", "n", "nulls")),
        *((name, pa.int64()) for name in ("num_values", "nans", "num_finite")),
        *((name, pa.float64()) for name in ("mean", "squares", "cubes", "low", "high")),
        ("shift", pa.int64()),
        ("ranges", pa.list_(pa.int64())),
        ("counts", pa.list_(pa.int64())),
        ("texts", pa.list_(pa.string())),
        ("text_counts", pa.list_(pa.int64())),
        ("other", pa.int64()),
    ]
)


def is_text(data_type: pa.DataType) -> bool:
    """Return True for texts; `spark.sql.execution.arrow.useLargeVarTypes` makes them large."""
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def is_list(data_type: pa.DataType) -> bool:
    """Return True for arrays, of either size."""
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def values_of(column: pa.Array) -> "np.ndarray[Any, Any]":
    """Return the values of a column of doubles, or of arrays of doubles, without nulls."""
    if is_list(column.type):
        column = column.flatten()
    values: np.ndarray[Any, Any] = column.drop_null().to_numpy(zero_copy_only=False)
    return values


@dataclass(frozen=True)
class Summary:
    """All that a profile needs to know about a column, or an element of its arrays.

    Attributes:
        n: the number of rows.
        nulls: the number of rows that are null.
        moments: the moments of numbers.
        values: the distribution of numbers.
        categories: the categories of texts.
    """

    n: int = 0
    nulls: int = 0
    moments: Moments = field(default_factory=Moments)
    values: Distribution = field(default_factory=Distribution)
    categories: Categories = field(default_factory=Categories)

    @classmethod
    def sum(cls, parts: Sequence["Summary"], max_ranges: int = MAX_RANGES) -> "Summary":
        """Return the summary of the rows of all parts."""
        moments = Moments()
        for part in parts:
            moments += part.moments
        return cls(
            sum(part.n for part in parts),
            sum(part.nulls for part in parts),
            moments,
            Distribution.sum((part.values for part in parts), max_ranges),
            Categories.sum(part.categories for part in parts),
        )

    def to_row(self, column: int, size: int = NO_SIZE, element: int = WHOLE) -> dict[str, Any]:
        """Return the row that stands for a summary in Spark.

        Args:
            column: the number of the column.
            size: the length of its arrays.
            element: the number of the element.
        """
        return {
            "key": f"{column} {size} {element}",
            "column": column,
            "size": size,
            "element": element,
            "n": self.n,
            "nulls": self.nulls,
            **asdict(self.moments),
            "shift": self.values.shift,
            "ranges": self.values.ranges,
            "counts": self.values.counts,
            "texts": list(self.categories.counts.keys()),
            "text_counts": list(self.categories.counts.values()),
            "other": self.categories.other,
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Summary":
        """Return the summary that such a row stands for."""
        ranges, counts = (np.array(row[name], np.int64) for name in ("ranges", "counts"))
        texts = dict(zip(row["texts"], row["text_counts"], strict=True))
        return cls(
            row["n"],
            row["nulls"],
            Moments(**{name.name: row[name.name] for name in fields(Moments)}),
            Distribution(row["shift"], ranges, counts),
            Categories(texts, row["other"]),
        )


class _Column:
    """The summary of a column, or of an element of arrays, while its values arrive."""

    def __init__(self, max_ranges: int, portion: int = PORTION) -> None:
        self._max_ranges = max_ranges
        self._max_values = portion
        self._summary = Summary()
        self._portion: list[np.ndarray[Any, Any]] = []
        self._num_values = 0
        self._num_rows = 0
        self._num_nulls = 0

    def add(self, column: pa.Array) -> None:
        self.add_rows(len(column), column.null_count)
        if is_text(column.type):
            self.add_summary(Summary(categories=Categories.of(column)))
        elif pa.types.is_floating(column.type):
            self.add_values(values_of(column))

    def add_rows(self, num: int, num_nulls: int) -> None:
        self._num_rows += num
        self._num_nulls += num_nulls

    def add_values(self, values: "np.ndarray[Any, Any]") -> None:
        self._portion.append(values)
        self._num_values += len(values)
        if self._num_values >= self._max_values:
            self._summarise_portion()

    def _summarise_portion(self) -> None:
        values = np.concatenate(self._portion)
        self._portion, self._num_values = [], 0
        known = self._summary.values
        distribution = Distribution.of(values[~np.isnan(values)], self._max_ranges, known.shift)
        self.add_summary(Summary(moments=Moments.of(values), values=distribution))

    def add_summary(self, part: Summary) -> None:
        self._summary = Summary.sum([self._summary, part], self._max_ranges)

    def summary(self) -> Summary:
        if self._portion:
            self._summarise_portion()
        return replace(self._summary, n=self._num_rows, nulls=self._num_nulls)

    def rows(self, number: int) -> Iterator[dict[str, Any]]:
        yield self.summary().to_row(number)


class _ArrayColumn:
    """The summaries of the elements of a column of arrays, while its batches arrive.

    The summary of the whole column has all values, unless each element is summarised: its values
    are then the sum of them.
    """

    def __init__(self, max_ranges: int, choice: Choice) -> None:
        self._max_ranges = max_ranges
        self._choice = choice
        self._size = NO_SIZE
        self._whole = _Column(max_ranges)
        self._elements: dict[int, _Column] = {}

    def add(self, column: pa.Array) -> None:
        self._whole.add_rows(len(column), column.null_count)
        sizes = sizes_of(column)
        if self._size == NO_SIZE and len(sizes) == 1:
            self._size = sizes[0]
            self._elements = {
                element: _Column(self._max_ranges, ELEMENT_PORTION)
                for element in chosen(self._choice, self._size)
            }
        if sizes and sizes != [self._size]:
            self._end_elements()
        if self._elements:
            self._add_elements(column)
        if not self._is_complete():
            self._whole.add_values(values_of(column))

    def _is_complete(self) -> bool:
        return 0 < self._size == len(self._elements)

    def _add_elements(self, column: pa.Array) -> None:
        values, is_valid = matrix_of(column, self._size)
        for element, summary in self._elements.items():
            some = is_valid[:, element]
            summary.add_rows(len(some), int(len(some) - some.sum()))
            summary.add_values(values[some, element])

    def _end_elements(self) -> None:
        """Summarise the whole column only, as its arrays have several lengths."""
        if self._is_complete():
            for element in self._elements.values():
                self._whole.add_summary(element.summary())
        self._size, self._elements = MANY_SIZES, {}

    def rows(self, number: int) -> Iterator[dict[str, Any]]:
        yield self._whole.summary().to_row(number, self._size)
        for element, summary in self._elements.items():
            yield summary.summary().to_row(number, self._size, element)


@dataclass(frozen=True)
class Summarizer:
    """A function for `mapInArrow` that returns a row for each column of a partition.

    Arrays of one length have a row for each of their elements, too.

    Attributes:
        choices: for each column of arrays the elements that are summarised; for the columns of
            doubles, of texts, and of other types, of which only nulls are counted, None.
        max_ranges: see `Distribution.of`.
    """

    choices: tuple[Choice | None, ...]
    max_ranges: int = MAX_RANGES

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the summaries."""
        columns = [
            _Column(self.max_ranges) if choice is None else _ArrayColumn(self.max_ranges, choice)
            for choice in self.choices
        ]
        for batch in batches:
            for column, array in zip(columns, batch.columns, strict=True):
                column.add(array)
        for number, column in enumerate(columns):
            for row in column.rows(number):
                yield pa.RecordBatch.from_pylist([row], schema=SUMMARY_SCHEMA)


def add_summaries(rows: pa.Table, max_ranges: int) -> pa.Table:
    """Return the row of the sum of the summaries with a key; for `apply_in_arrow`."""
    first = rows.slice(0, 1).to_pylist()[0]
    total = Summary.sum([Summary.from_row(row) for row in rows.to_pylist()], max_ranges)
    row = total.to_row(first["column"], first["size"], first["element"])
    # Texts may be large, see `is_text`.
    return pa.Table.from_pylist([row], schema=rows.schema)


def add_columns(
    rows: Iterable[dict[str, Any]], choices: Sequence[Choice | None], max_ranges: int
) -> list[tuple[int | None, dict[int, Summary]]]:
    """Return the size of the arrays of each column, and the summaries of it and of its elements.

    The size is None if there are arrays of several lengths, and 0 if there are none.
    """
    by_column: list[dict[tuple[int, int], Summary]] = [{} for _ in choices]
    for row in rows:
        by_column[row["column"]][row["size"], row["element"]] = Summary.from_row(row)
    return [
        _column(parts, choice, max_ranges) for parts, choice in zip(by_column, choices, strict=True)
    ]


def _column(
    parts: dict[tuple[int, int], Summary], choice: Choice | None, max_ranges: int
) -> tuple[int | None, dict[int, Summary]]:
    """Return the size and the summaries of a column, see `add_columns`."""
    sizes = {size for size, _ in parts} - {NO_SIZE}
    wholes = [part for (_, element), part in parts.items() if element == WHOLE]
    whole = Summary.sum(wholes, max_ranges)
    if not sizes:
        return 0, {WHOLE: whole}
    if len(sizes) > 1 or MANY_SIZES in sizes:
        values = [
            replace(part, n=0, nulls=0)
            for (size, element), part in parts.items()
            if element != WHOLE and len(chosen(choice or 0, size)) == size
        ]
        return None, {WHOLE: Summary.sum([whole, *values], max_ranges)}
    (size,) = sizes
    elements = {
        # An array that is null has no element.
        element: replace(part, n=whole.n, nulls=part.nulls + whole.nulls)
        for (_, element), part in sorted(parts.items(), key=lambda item: item[0])
        if element != WHOLE
    }
    return size, elements if len(elements) == size > 0 else {WHOLE: whole, **elements}
