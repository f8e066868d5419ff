"""Runs anywhere. Moments, samples and histograms, which Spark tasks compute with NumPy."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

__all__ = [
    "MOMENTS_SCHEMA",
    "NUM_BINS",
    "NUM_QUANTILES",
    "BinCounter",
    "Edges",
    "Moments",
    "MomentsCounter",
    "Sampler",
]

NUM_QUANTILES = 10
NUM_BINS = 1000

MOMENTS_SCHEMA = pa.schema(
    [
        ("feature", pa.int32()),
        *((name, pa.int64()) for name in ("num_values", "nans", "num_finite")),
        *((name, pa.float64()) for name in ("mean", "squares", "low", "high")),
    ]
)


@dataclass(frozen=True)
class Edges:
    """The edges of the two histograms of a feature.

    Attributes:
        quantiles: the edges between bins that hold about the same number of values each; the first
            bin begins at minus infinity, and the last one ends at infinity.
        low, high: the ends of `NUM_BINS` bins of equal width. Values below and above are counted in
            two more bins.
    """

    quantiles: tuple[float, ...]
    low: float
    high: float

    @classmethod
    def of(cls, low: float | None, high: float | None, quantiles: Sequence[float]) -> "Edges":
        """Return the edges for the smallest and the largest value, and the quantiles between.

        Example:
            >>> Edges.of(0.0, 10.0, [1.0, 1.0, 5.0])
            Edges(quantiles=(1.0, 5.0), low=0.0, high=10.0)
            >>> Edges.of(3.0, 3.0, [3.0])
            Edges(quantiles=(3.0,), low=2.5, high=3.5)
        """
        low, high = low or 0.0, high or 0.0
        if low == high:  # A constant is in the middle.
            pad = max(0.5, abs(low) * 1e-6)
            low, high = low - pad, high + pad
        return cls(tuple(sorted(set(quantiles))), low, high)

    def histograms(self) -> dict[str, dict[str, Any]]:
        """Return both histograms without values."""
        edges = [-math.inf, *self.quantiles, math.inf]
        return {
            "quantiles": {"edges": edges, "counts": [0] * (len(edges) - 1)},
            "bins": {"low": self.low, "high": self.high, "counts": [0] * (NUM_BINS + 2)},
        }

    def count(self, values: "np.ndarray[Any, Any]") -> tuple[Any, Any]:
        """Return the counts of values, without NaN, in the bins of both histograms.

        A bin between quantiles contains its upper edge, and a bin of equal width its lower edge;
        the last one contains both.

        Example:
            >>> by_quantile, by_width = Edges((1.0, 5.0), 0.0, 10.0).count(np.array([1., 2., 11.]))
            >>> by_quantile.tolist(), by_width.nonzero()[0].tolist()
            ([1, 1, 1], [101, 201, 1001])
        """
        places = np.searchsorted(np.array(self.quantiles), values, side="left")
        # Halves, because the difference of large numbers may be infinite.
        width = self.high / 2 - self.low / 2
        inside = np.clip(values, self.low, self.high)
        numbers = 1 + ((inside / 2 - self.low / 2) / width * NUM_BINS).astype(np.int64)
        numbers = np.minimum(numbers, NUM_BINS)
        numbers[values < self.low] = 0
        numbers[values > self.high] = NUM_BINS + 1
        num_quantiles = len(self.quantiles) + 1
        return (
            np.bincount(places, minlength=num_quantiles),
            np.bincount(numbers, minlength=NUM_BINS + 2),
        )


@dataclass(frozen=True)
class Moments:
    """The moments of some values of a feature.

    Attributes:
        num_values: the number of values that are not null.
        nans: the number of NaN among the values.
        num_finite: the number of finite values, which the other fields describe.
        mean: the mean; 0 without values.
        squares: the sum of the squared distances from the mean.
        low, high: the smallest and the largest value.
    """

    num_values: int = 0
    nans: int = 0
    num_finite: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @classmethod
    def of(cls, values: "np.ndarray[Any, Any]") -> "Moments":
        """Return the moments of an array."""
        finite = values[np.isfinite(values)]
        counts = len(values), int(np.isnan(values).sum()), len(finite)
        if not len(finite):
            return cls(*counts)
        mean = float(finite.mean())
        squares = float(((finite - mean) ** 2).sum())
        return cls(*counts, mean, squares, float(finite.min()), float(finite.max()))

    def __add__(self, other: "Moments") -> "Moments":
        """Return the moments of the values of both (Chan et al. 1983).

        Example:
            >>> both = Moments.of(np.array([1.0, 2.0])) + Moments.of(np.array([6.0]))
            >>> both.mean, both.squares
            (3.0, 14.0)
        """
        num = self.num_finite + other.num_finite
        share = other.num_finite / num if num else 0.0
        distance = other.mean - self.mean
        return Moments(
            self.num_values + other.num_values,
            self.nans + other.nans,
            num,
            self.mean + distance * share,
            self.squares + other.squares + distance**2 * share * self.num_finite,
            min(self.low, other.low),
            max(self.high, other.high),
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields of a profile; None for those that need a finite value."""
        some = self.num_finite > 0
        return {
            "num_values": self.num_values,
            "nans": self.nans,
            "mean": self.mean if some else None,
            "std": math.sqrt(self.squares / self.num_finite) if some else None,
            "min": self.low if some else None,
            "max": self.high if some else None,
        }


def values_of(column: pa.Array) -> "np.ndarray[Any, Any]":
    """Return the values of a column of doubles, or of arrays of doubles, without nulls."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        column = column.flatten()
    values: np.ndarray[Any, Any] = column.drop_null().to_numpy(zero_copy_only=False)
    return values


@dataclass(frozen=True)
class MomentsCounter:
    """A function for `mapInArrow` that returns the moments of each column of a partition.

    Attributes:
        num_columns: the number of columns.
    """

    num_columns: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each column, with the fields of `Moments`."""
        sums = [Moments()] * self.num_columns
        for batch in batches:
            columns = zip(sums, batch.columns, strict=True)
            sums = [total + Moments.of(values_of(column)) for total, column in columns]
        rows = [{"feature": number, **asdict(total)} for number, total in enumerate(sums)]
        yield pa.RecordBatch.from_pylist(rows, schema=MOMENTS_SCHEMA)


@dataclass(frozen=True)
class Sampler:
    """A function for `mapInArrow` that returns a random sample of the values of each column.

    Attributes:
        shares: the share of the finite values of each column that is returned.
    """

    shares: tuple[float, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of feature and value."""
        context = TaskContext.get()
        random = np.random.default_rng(context.partitionId() if context else 0)
        for batch in batches:
            for feature, (share, column) in enumerate(zip(self.shares, batch.columns, strict=True)):
                values = values_of(column)
                values = values[np.isfinite(values)]
                if share < 1.0:
                    values = values[random.random(len(values)) < share]
                features = pa.array(np.full(len(values), feature), pa.int32())
                yield pa.RecordBatch.from_pydict({"feature": features, "value": values})


@dataclass(frozen=True)
class BinCounter:
    """A function for `mapInArrow` that counts the values of a partition.

    Attributes:
        edges: the edges of each column.
    """

    edges: tuple[Edges, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the numbers that are not zero, as rows of feature, histogram, bin and number."""
        sums: list[list[Any]] = [[0, 0] for _ in self.edges]
        for batch in batches:
            for edges, total, column in zip(self.edges, sums, batch.columns, strict=True):
                values = values_of(column)
                for which, counts in enumerate(edges.count(values[~np.isnan(values)])):
                    total[which] = total[which] + counts
        for feature, total in enumerate(sums):
            for which, counts in enumerate(total):
                if (bins := np.flatnonzero(counts)).size:
                    yield _rows(feature, which == 0, bins, counts[bins])


def _rows(feature: int, is_quantile: bool, bins: Any, counts: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "feature": pa.array(np.full(len(bins), feature), pa.int32()),
            "is_quantile": pa.array(np.full(len(bins), is_quantile), pa.bool_()),
            "bin": pa.array(bins, pa.int32()),
            "num": pa.array(counts, pa.int64()),
        }
    )
