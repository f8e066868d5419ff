"""Runs anywhere. Histograms with fixed edges, counted by Spark tasks with NumPy."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["NUM_BINS", "NUM_QUANTILES", "BinCounter", "Edges"]

NUM_QUANTILES = 10
NUM_BINS = 1000


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
class BinCounter:
    """A function for `mapInArrow` that counts the values of a partition.

    Attributes:
        edges: the edges of each column; all columns are doubles.
    """

    edges: tuple[Edges, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the numbers that are not zero, as rows of feature, histogram, bin and number."""
        sums: list[list[Any]] = [[0, 0] for _ in self.edges]
        for batch in batches:
            for edges, total, column in zip(self.edges, sums, batch.columns, strict=True):
                values = column.drop_null().to_numpy(zero_copy_only=False)
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
