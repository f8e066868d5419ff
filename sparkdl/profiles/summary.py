"""Runs in a Spark task. Summarise the columns of a partition, and add summaries up."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.profiles.categories import Categories
from sparkdl.profiles.distribution import MAX_RANGES, Distribution
from sparkdl.profiles.moments import Moments

# Values are summarised in portions of this number.
PORTION = 1 << 18

SUMMARY_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("feature", "n", "nulls")),
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
    """All that a profile needs to know about a column.

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

    def to_row(self, feature: int) -> dict[str, Any]:
        """Return the row that stands for the summary of a feature in Spark."""
        return {
            "feature": feature,
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
    """The summary of a column, while its batches arrive."""

    def __init__(self, max_ranges: int) -> None:
        self._max_ranges = max_ranges
        self._summary = Summary()
        self._portion: list[np.ndarray[Any, Any]] = []
        self._num_values = 0

    def add(self, column: pa.Array) -> None:
        if is_text(column.type):
            part = Summary(len(column), column.null_count, categories=Categories.of(column))
        else:
            part = Summary(len(column), column.null_count)
        if pa.types.is_floating(column.type) or is_list(column.type):
            values = values_of(column)
            self._portion.append(values)
            self._num_values += len(values)
        self._add_summary(part)
        if self._num_values >= PORTION:
            self._summarise_portion()

    def _summarise_portion(self) -> None:
        values = np.concatenate(self._portion)
        self._portion, self._num_values = [], 0
        known = self._summary.values
        distribution = Distribution.of(values[~np.isnan(values)], self._max_ranges, known.shift)
        self._add_summary(Summary(moments=Moments.of(values), values=distribution))

    def _add_summary(self, part: Summary) -> None:
        self._summary = Summary.sum([self._summary, part], self._max_ranges)

    def summary(self) -> Summary:
        if self._portion:
            self._summarise_portion()
        return self._summary


@dataclass(frozen=True)
class Summarizer:
    """A function for `mapInArrow` that returns a row for each column of a partition.

    Attributes:
        num_columns: the number of columns: doubles, arrays of doubles, texts, or other types, of
            which only nulls are counted.
        max_ranges: see `Distribution.of`.
    """

    num_columns: int
    max_ranges: int = MAX_RANGES

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the summaries."""
        columns = [_Column(self.max_ranges) for _ in range(self.num_columns)]
        for batch in batches:
            for column, array in zip(columns, batch.columns, strict=True):
                column.add(array)
        for feature, column in enumerate(columns):
            row = column.summary().to_row(feature)
            yield pa.RecordBatch.from_pylist([row], schema=SUMMARY_SCHEMA)


def add_summaries(rows: pa.Table, max_ranges: int) -> pa.Table:
    """Return the row of the sum of the summaries of a feature; for `apply_in_arrow`."""
    feature = rows["feature"][0].as_py()
    total = Summary.sum([Summary.from_row(row) for row in rows.to_pylist()], max_ranges)
    # Texts may be large, see `is_text`.
    return pa.Table.from_pylist([total.to_row(feature)], schema=rows.schema)
