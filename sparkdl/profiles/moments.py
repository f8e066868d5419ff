"""Runs anywhere. The moments of values, which can be added up."""

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

_SMALLEST = sys.float_info.min


@dataclass(frozen=True)
class Moments:
    """The moments of some values of a feature.

    Attributes:
        num_values: the number of values that are not null.
        nans: the number of NaN among the values.
        num_finite: the number of finite values, which the other fields describe.
        mean: the mean; 0 without values.
        squares, cubes: the sums of the second and third powers of the distances from the mean.
        low, high: the smallest and the largest value.
    """

    num_values: int = 0
    nans: int = 0
    num_finite: int = 0
    mean: float = 0.0
    squares: float = 0.0
    cubes: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @classmethod
    def of(cls, values: "np.ndarray[Any, Any]") -> "Moments":
        """Return the moments of an array."""
        finite = values[np.isfinite(values)]
        counts = len(values), int(np.isnan(values).sum()), len(finite)
        if not len(finite):
            return cls(*counts)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):  # See `Shape`.
            mean = float(finite.mean())
            distances = finite - mean
            squares = distances**2
            sums = float(squares.sum()), float((squares * distances).sum())
        return cls(*counts, mean, *sums, float(finite.min()), float(finite.max()))

    def __add__(self, other: "Moments") -> "Moments":
        """Return the moments of the values of both (Pébay 2008, SAND2008-6212).

        Example:
            >>> both = Moments.of(np.array([1.0, 2.0])) + Moments.of(np.array([6.0]))
            >>> both.mean, both.squares
            (3.0, 14.0)
        """
        num = self.num_finite + other.num_finite
        share = other.num_finite / num if num else 0.0
        distance = other.mean - self.mean
        # The square of a large number by `**` is an error, and infinite by `*`.
        both = distance * distance * share * self.num_finite
        skew = both * distance * (self.num_finite - other.num_finite) / max(num, 1)
        skew += 3 * distance * (other.squares * (1 - share) - self.squares * share)
        return Moments(
            self.num_values + other.num_values,
            self.nans + other.nans,
            num,
            self.mean + distance * share,
            self.squares + other.squares + both,
            self.cubes + other.cubes + skew,
            min(self.low, other.low),
            max(self.high, other.high),
        )

    def fields(self, shape: "Shape") -> dict[str, Any]:
        """Return the fields of a profile; None for those that need a finite value."""
        some = self.num_finite > 0
        return {
            "num_values": self.num_values,
            "nans": self.nans,
            "mean": shape.mean if some else None,
            "std": shape.std if some else None,
            "min": self.low if some else None,
            "max": self.high if some else None,
        }


@dataclass(frozen=True)
class Shape:
    """The mean of some values, their standard deviation, and their skewness.

    Attributes:
        mean: the mean; 0 without values.
        std: the standard deviation of the population.
        skewness: the third standardized moment; 0 if all values are the same.
    """

    mean: float = 0.0
    std: float = 0.0
    skewness: float = 0.0

    @classmethod
    def of(cls, moments: Moments, values: Any, counts: Any) -> "Shape":
        """Return the shape of values.

        The powers of very large and very small values are infinite or zero. The shape is then that
        of the values divided by the largest of them.

        Args:
            moments: the moments of the values.
            values: the values as a sorted array.
            counts: how often each value occurs.

        Example:
            >>> values = np.array([0.0, 1e200])
            >>> Shape.of(Moments.of(values), values, np.array([1, 1]))
            Shape(mean=5e+199, std=5e+199, skewness=0.0)
        """
        num = moments.num_finite
        if not num or moments.low == moments.high:
            return cls(moments.low if num else 0.0)
        cubed = (moments.squares / num) ** 1.5 if moments.squares < math.inf else math.inf
        if _SMALLEST < cubed < math.inf and math.isfinite(moments.mean + moments.cubes):
            std = math.sqrt(moments.squares / num)
            return cls(moments.mean, std, (moments.cubes / num) / cubed)
        is_finite = np.isfinite(values)
        scale = max(abs(moments.low), abs(moments.high))
        scaled, counts = values[is_finite] / scale, counts[is_finite]
        mean = float(np.average(scaled, weights=counts))
        std = math.sqrt(np.average((scaled - mean) ** 2, weights=counts))
        cubes = float(np.average((scaled - mean) ** 3, weights=counts))
        return cls(mean * scale, std * scale, cubes / std**3 if std**3 > 0 else 0.0)
