"""A noisy descent whose best learning rate changes while it trains, for searches of schedules.

The module is imported by programs of other environments, so it needs only NumPy.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["MEMBERS", "SPEEDS", "begin", "descend"]

MEMBERS = 8
STEPS = 30
_CURVATURE = np.geomspace(0.1, 10.0, 10)

Weights = npt.NDArray[np.float64]


def begin() -> Weights:
    """Return the weights with which each member begins."""
    return np.ones(10)


def descend(weights: Weights, rate: float, seed: int) -> tuple[Weights, float]:
    """Train for an interval; return the new weights and their loss."""
    noise = np.random.default_rng(seed)
    for _ in range(STEPS):
        weights = weights - rate * _CURVATURE * (weights + noise.normal(0.0, 1.0, 10))
    return weights, float(0.5 * np.sum(_CURVATURE * weights**2))


# The time of an interval of a member with a learning rate, and a random number from 0 to 1.
SPEEDS: dict[str, Callable[[int, float, float], float]] = {
    "equal, 20 % by chance": lambda member, rate, chance: 0.8 + 0.4 * chance,
    "members 1 to 4 times as fast": lambda member, rate, chance: 1.0 + 3.0 * member / 7,
    "a large rate is fast": lambda member, rate, chance: 0.2 if rate > 1e-2 else 1.0,
}
