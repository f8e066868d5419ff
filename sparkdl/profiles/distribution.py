"""Runs anywhere. The distribution of any number of values, in limited memory.

The bits of a positive double, read as an integer, are in the order of the doubles (IEEE 754-2008,
5.10). Dropping the last bits of such integers therefore gives ranges of neighbouring doubles,
whose width is relative to their value, and ranges of two distributions can be added up.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAX_RANGES = 1 << 14

_MANTISSA_BITS = 52
_SMALLEST_NORMAL = np.finfo(np.float64).smallest_normal
_WITHOUT_SIGN = np.int64(2**63 - 1)


@dataclass(frozen=True)
class Distribution:
    """The number of values in ranges, which are as narrow as the number of ranges allows.

    Attributes:
        shift: the number of last bits that the doubles of a range differ in; with 0, each range is
            one value. The width of a range is at most `2 ** (shift - 52)` of its values.
        ranges: the first bits of the doubles of each range, ascending.
        counts: the number of values in each range.

    Example:
        >>> distribution = Distribution.of(np.array([2.0, 1.0, 2.0, np.inf]))
        >>> distribution.values().tolist(), distribution.counts.tolist()
        ([1.0, 2.0, inf], [1, 2, 1])
        >>> distribution.quantiles(2)
        [2.0]
    """

    shift: int = 0
    ranges: "np.ndarray[Any, Any]" = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: "np.ndarray[Any, Any]" = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(
        cls, values: "np.ndarray[Any, Any]", max_ranges: int = MAX_RANGES, shift: int = 0
    ) -> "Distribution":
        """Return the distribution of values, which may be infinite but not NaN.

        Args:
            values: an array of doubles.
            max_ranges: the largest number of ranges.
            shift: the smallest shift.
        """
        ranges, counts = np.unique(_in_order(values) >> shift, return_counts=True)
        return cls(shift, ranges, counts.astype(np.int64))._limited(max_ranges)

    @classmethod
    def sum(
        cls, distributions: Iterable["Distribution"], max_ranges: int = MAX_RANGES
    ) -> "Distribution":
        """Return the distribution of the values of all distributions."""
        parts = list(distributions)
        shift = max((part.shift for part in parts), default=0)
        ranges = [part.ranges >> (shift - part.shift) for part in parts]
        counts = [part.counts for part in parts]
        if not parts:
            return cls()
        return _merged(shift, np.concatenate(ranges), np.concatenate(counts))._limited(max_ranges)

    def _limited(self, max_ranges: int) -> "Distribution":
        limited = self
        while len(limited.ranges) > max_ranges and limited.shift < _MANTISSA_BITS:
            limited = _merged(limited.shift + 1, limited.ranges >> 1, limited.counts)
        return limited

    def values(self) -> "np.ndarray[Any, Any]":
        """Return a value of each range: the only one, or one in the middle."""
        middle = np.where(self.ranges == 0, 0, (1 << self.shift) >> 1)
        values = _from_ordered((self.ranges << self.shift) + middle)
        # The ranges beyond the finite doubles hold the infinite ones only.
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(values), values, np.sign(self.ranges + 0.5) * np.inf)

    def quantiles(self, num: int) -> list[float]:
        """Return the edges, without duplicates, between parts with as many finite values each.

        A part contains its upper edge. No range reaches over an edge, so that counts are exact.

        Args:
            num: the number of parts.
        """
        is_finite = np.isfinite(self.values())
        counts, ranges = self.counts[is_finite].cumsum(), self.ranges[is_finite]
        if not len(counts):
            return []
        ranks = np.arange(1, num) * counts[-1] / num
        range_numbers = ranges[np.searchsorted(counts, ranks, side="left")]
        last = _from_ordered(
            np.where(range_numbers == 0, 0, ((range_numbers + 1) << self.shift) - 1)
        )
        return sorted(set(last.tolist()))


def _merged(shift: int, ranges: Any, counts: Any) -> Distribution:
    """Return the distribution in which ranges with the same bits are one range."""
    if not len(ranges):
        return Distribution(shift)
    order = np.argsort(ranges, kind="stable")
    ranges, counts = ranges[order], counts[order]
    begins = np.flatnonzero(np.diff(ranges, prepend=ranges[:1] - 1))
    return Distribution(shift, ranges[begins], np.add.reduceat(counts, begins))


def _in_order(values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return integers in the order of the doubles; numbers too small for full precision are 0."""
    values = np.asarray(values, np.float64)
    bits = np.where(np.abs(values) < _SMALLEST_NORMAL, 0.0, values).view(np.int64)
    numbers: np.ndarray[Any, Any] = bits ^ ((bits >> 63) & _WITHOUT_SIGN)
    return numbers


def _from_ordered(numbers: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return the doubles of such integers."""
    values: np.ndarray[Any, Any] = (numbers ^ ((numbers >> 63) & _WITHOUT_SIGN)).view(np.float64)
    return values
