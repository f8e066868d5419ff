"""Runs anywhere. The histograms of a feature, whose edges stay those of the training data."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.profiles.distribution import Distribution
from sparkdl.profiles.moments import Moments, Shape

NUM_QUANTILES = 10
NUM_BINS = 1000
# Bins beyond the training data that are told apart, so that sums of them fit into a long.
MAX_BEYOND = 1 << 30

_LARGEST = sys.float_info.max


@dataclass(frozen=True, kw_only=True)
class Edges:
    """The edges of the histograms of a feature.

    Attributes:
        quantiles: the edges between bins that hold about the same number of values each; the first
            bin begins at minus infinity, and the last one ends at infinity.
        low, high: the ends of the bins of equal width. Values below and above are counted in two
            more bins.
        num_bins: the number of fine bins between `low` and `high`.
        num_wide_bins: the number of wide bins between `low` and `high`.
    """

    quantiles: tuple[float, ...]
    low: float
    high: float
    num_bins: int = NUM_BINS
    num_wide_bins: int = 1

    @classmethod
    def of(
        cls, moments: Moments, shape: Shape, values: Distribution, num_bins: int = NUM_BINS
    ) -> "Edges":
        """Return the edges for the values of the training data."""
        some = moments.num_finite > 0
        low, high = (moments.low, moments.high) if some else (0.0, 0.0)
        if low == high:  # A constant is in the middle.
            pad = max(0.5, abs(low) * 1e-6)
            low, high = max(low - pad, -_LARGEST), min(high + pad, _LARGEST)
        return cls(
            quantiles=tuple(values.quantiles(NUM_QUANTILES)),
            low=low,
            high=high,
            num_bins=num_bins,
            num_wide_bins=doane_bins(moments, shape),
        )

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "Edges":
        """Return the edges of a feature of a profile."""
        bins, wide = fields["bins"], fields["wide_bins"]
        return cls(
            quantiles=tuple(fields["quantiles"]["edges"][1:-1]),
            low=bins["low"],
            high=bins["high"],
            num_bins=len(bins["counts"]) - 2,
            num_wide_bins=len(wide["counts"]) - 2,
        )

    def count(
        self, values: "np.ndarray[Any, Any]", counts: "np.ndarray[Any, Any] | None" = None
    ) -> "Histograms":
        """Return the histograms of values without NaN.

        A bin between quantiles contains its upper edge, and a bin of equal width its lower edge;
        the last one contains both, as in `numpy.histogram`.

        Args:
            values: an array of doubles.
            counts: how often each value occurs; by default once.

        Example:
            >>> edges = Edges(quantiles=(1.0, 5.0), low=0.0, high=10.0)
            >>> found = edges.count(np.array([1.0, 2.0, 11.0]))
            >>> found.quantiles.tolist(), found.bins.nonzero()[0].tolist()
            ([1, 1, 1], [101, 201, 1001])
        """
        places = np.searchsorted(np.array(self.quantiles), values, side="left")
        return Histograms(
            edges=self,
            quantiles=_sums(places, counts, len(self.quantiles) + 1),
            beyond=self._beyond(values, counts),
            bins=self._equal_width(values, counts, self.num_bins),
            wide_bins=self._equal_width(values, counts, self.num_wide_bins),
        )

    def _beyond(self, values: Any, counts: Any) -> Any:
        """Return by how many bins values lie below and above the bins next to the training data."""
        width = (self.high / self.num_bins) - (self.low / self.num_bins)
        weights = np.isfinite(values) * (1 if counts is None else counts)
        sums = []
        for is_beyond, edge in ((values < self.low, self.low), (values > self.high, self.high)):
            some = is_beyond & (weights > 0)
            with np.errstate(over="ignore", divide="ignore"):
                num_bins = np.floor(np.abs(values[some] - edge) / width)
            num_bins = np.minimum(num_bins, MAX_BEYOND).astype(np.int64)
            sums.append(int((num_bins * weights[some]).sum()))
        return np.array(sums, np.int64)

    def _equal_width(self, values: Any, counts: Any, num: int) -> Any:
        # Halves, because the difference of large numbers may be infinite.
        edges = 2 * np.linspace(self.low / 2, self.high / 2, num + 1)
        numbers = np.searchsorted(edges, values, side="right")
        numbers = np.where(values == self.high, num, numbers)
        return _sums(numbers, counts, num + 2)


def _sums(places: Any, counts: Any, num: int) -> Any:
    sums = np.bincount(places, weights=counts, minlength=num)
    return sums.astype(np.int64)


def doane_bins(moments: Moments, shape: Shape) -> int:
    """Return the number of bins by Doane's rule (1976), which is `bins="doane"` of NumPy.

    Example:
        >>> doane_bins(Moments.of(np.arange(100.0)), Shape())
        8
    """
    n = moments.num_finite
    if n <= 2 or moments.low == moments.high:
        return 1
    deviation = math.sqrt(6.0 * (n - 2) / ((n + 1.0) * (n + 3)))
    return math.ceil(1.0 + math.log2(n) + math.log2(1.0 + abs(shape.skewness) / deviation))


@dataclass(frozen=True, kw_only=True)
class Histograms:
    """The histograms of a feature: the number of values in each bin.

    Attributes:
        edges: the edges of the bins.
        quantiles: counts between quantiles.
        bins, wide_bins: counts in bins of equal width, from that of smaller to that of larger
            values than the training data has.
        beyond: the sums of the numbers of bins by which smaller and larger values lie beyond the
            first and the last bin.
    """

    edges: Edges
    quantiles: Any
    beyond: Any
    bins: Any
    wide_bins: Any

    def fields(self) -> dict[str, Any]:
        """Return the fields of a profile."""
        ends = {"low": self.edges.low, "high": self.edges.high}
        return {
            "quantiles": {
                "edges": [-math.inf, *self.edges.quantiles, math.inf],
                "counts": self.quantiles.tolist(),
            },
            "bins": {**ends, "counts": self.bins.tolist()},
            "wide_bins": {**ends, "counts": self.wide_bins.tolist()},
        }
