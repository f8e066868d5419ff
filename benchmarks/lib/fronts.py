"""Published functions of two objectives with learning curves, for searches that train nothing.

All are minimized, on `[0, 1]^6`:

- ZDT1, ZDT2, ZDT3: Zitzler, Deb and Thiele, "Comparison of Multiobjective Evolutionary Algorithms:
  Empirical Results", Evolutionary Computation 8 (2000), with 6 variables in place of 30, as many as
  a search of hyperparameters has
- Fonseca and Fleming: "An Overview of Evolutionary Algorithms in Multiobjective Optimization",
  Evolutionary Computation 3 (1995), of the first two variables, in `[-4, 4]`: with six, one random
  point in thousands differs from the worst value
- DTLZ2: Deb, Thiele, Laumanns and Zitzler, "Scalable Test Problems for Evolutionary Multiobjective
  Optimization" (2005), with two objectives

Each objective of a configuration begins at the reference point, which is the worst value of the
function, and approaches its final value as `exp(-epochs / tau)`. The two `tau` and the duration of
an epoch differ between configurations by lognormal factors, as in `hartmann.py`.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.hartmann import EPOCHS, NAMES, TAU, TAU_SPREAD
from lib.simulated import Setting

__all__ = ["FUNCTIONS", "FrontSetting"]

Two = tuple[float, float]


def _zdt(x: np.ndarray, h: Callable[[float, float], float]) -> Two:
    g = 1 + 9 * float(x[1:].mean())
    return float(x[0]), g * h(float(x[0]), g)


def _zdt1(x: np.ndarray) -> Two:
    return _zdt(x, lambda f, g: 1 - math.sqrt(f / g))


def _zdt2(x: np.ndarray) -> Two:
    return _zdt(x, lambda f, g: 1 - (f / g) ** 2)


def _zdt3(x: np.ndarray) -> Two:
    return _zdt(x, lambda f, g: 1 - math.sqrt(f / g) - f / g * math.sin(10 * math.pi * f))


def _fonseca_fleming(x: np.ndarray) -> Two:
    y, shift = 8 * x[:2] - 4, 1 / math.sqrt(2)
    near = [math.exp(-float(((y - place) ** 2).sum())) for place in (shift, -shift)]
    return 1 - near[0], 1 - near[1]


def _dtlz2(x: np.ndarray) -> Two:
    g, angle = 1 + float(((x[1:] - 0.5) ** 2).sum()), float(x[0]) * math.pi / 2
    return g * math.cos(angle), g * math.sin(angle)


# Each function, and its worst values.
FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], Two], Two]] = {
    "ZDT1": (_zdt1, (1.0, 10.0)),
    "ZDT2": (_zdt2, (1.0, 10.0)),
    "ZDT3": (_zdt3, (1.0, 10.0)),
    "Fonseca-Fleming": (_fonseca_fleming, (1.0, 1.0)),
    "DTLZ2": (_dtlz2, (2.25, 2.25)),
}


@dataclass(frozen=True)
class FrontCurve:
    """The simulated training of a configuration: values after each epoch, seconds per epoch."""

    values: tuple[Two, ...]
    epoch_s: float


@dataclass(frozen=True)
class FrontSetting(Setting):
    """The setting of a simulation of two objectives.

    Attributes:
        function: the name of the function.
    """

    function: str = "ZDT1"

    @property
    def reference(self) -> Two:
        """The reference point."""
        return FUNCTIONS[self.function][1]

    @property
    def objectives(self) -> Mapping[str, str]:
        """The direction of each metric."""
        return {"first": "min", "second": "min"}

    def values(self, made: Any, step: int) -> tuple[float, ...]:
        """Return what a configuration reports at a step."""
        return tuple(made.values[step])

    def curve(self, params: Mapping[str, Any]) -> FrontCurve:
        """Return the values that a configuration would report."""
        x = np.array([params[name] for name in NAMES])
        end, begin = np.array(FUNCTIONS[self.function][0](x)), np.array(self.reference)
        random = np.random.default_rng(zlib.crc32(x.tobytes()))
        tau, slow = TAU * random.lognormal(0, TAU_SPREAD, 2), random.lognormal(0, self.spread)
        epochs = np.arange(1, EPOCHS + 1)[:, None]
        values = end + (begin - end) * np.exp(-epochs / tau)
        return FrontCurve(tuple(map(tuple, values.tolist())), self.epoch_s * slow)
