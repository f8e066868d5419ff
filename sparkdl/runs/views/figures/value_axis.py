"""Runs on the driver (pure). The axis of values, which few outliers do not squeeze."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from sparkdl.runs.views.figures.base import is_wide

# Fewer values do not tell which of them are outliers.
MIN_VALUES = 8
# Tukey's outer fence: so many times the distance of the quartiles beyond them.
# https://www.itl.nist.gov/div898/handbook/prc/section1/prc16.htm
FENCE = 3.0
# An axis is cut if the other values would have less than a quarter of it, and if few are beyond.
SQUEEZED = 4.0
MAX_SHARE = 0.2

# The remark below a figure with such an axis.
HOW_TO_SHOW = "a double click shows the whole axis"


@dataclass(frozen=True)
class ValueAxis:
    """The scale of an axis, and the limits of what it shows at first.

    Attributes:
        is_log: the axis is logarithmic.
        limits: the smallest and the largest value on the axis; None if it shows all values.
    """

    is_log: bool = False
    limits: tuple[float, float] | None = None

    @property
    def layout(self) -> dict[str, Any]:
        """The properties of a plotly axis."""
        kind: dict[str, Any] = {"type": "log" if self.is_log else "linear", "zeroline": False}
        if not self.limits:
            return kind
        ends = [math.log10(end) if self.is_log else end for end in self.limits]
        return {**kind, "range": ends}

    def edge(self, value: float) -> float | None:
        """Return the end of the axis beyond which a value is; None for a value on the axis."""
        if not self.limits or self.limits[0] <= value <= self.limits[1]:
            return None
        return self.limits[0] if value < self.limits[0] else self.limits[1]

    def beyond(self, values: Iterable[float]) -> list[float]:
        """Return the values that are not on the axis."""
        return [value for value in values if self.edge(value) is not None]


def value_axis(values: Collection[float], keep: Collection[float] = ()) -> ValueAxis:
    """Return the axis of values.

    Args:
        values: the values; those that are not finite are left out.
        keep: values that are on the axis in any case, such as the best one.

    Example:
        >>> axis = value_axis([0.95 + i / 1000 for i in range(20)] + [0.1])
        >>> axis.beyond([0.96, 0.1]), value_axis([1, 2, 3]).limits
        ([0.1], None)
    """
    numbers = [value for value in values if math.isfinite(value)]
    is_log = is_wide(numbers)
    scale = math.log10 if is_log else float
    scaled = sorted(map(scale, numbers))
    if len(scaled) < MIN_VALUES:
        return ValueAxis(is_log)
    first, _, third = quantiles(scaled, n=4, method="inclusive")
    reach = FENCE * (third - first)
    inner = [value for value in scaled if first - reach <= value <= third + reach]
    is_many = len(scaled) - len(inner) > MAX_SHARE * len(scaled)
    inner += [scale(value) for value in keep if math.isfinite(value)]
    low, high = min(inner), max(inner)
    if is_many or low == high or scaled[-1] - scaled[0] <= SQUEEZED * (high - low):
        return ValueAxis(is_log)
    if is_log and not is_wide([10**value for value in inner]):
        # The outliers alone made the axis logarithmic.
        is_log, low, high = False, 10**low, 10**high
    pad = 0.05 * (high - low)
    ends = low - pad, high + pad
    return ValueAxis(is_log, (10 ** ends[0], 10 ** ends[1]) if is_log else ends)
