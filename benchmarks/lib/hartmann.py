"""A published function with learning curves and training times, for searches that train nothing.

The score is Hartmann's function in six dimensions, with its sign turned so that large is good: on
`[0, 1]^6` its best value is 3.32237, and one uniform point in 140 has more than 2. Coefficients:
Surjanovic and Bingham, Virtual Library of Simulation Experiments,
https://www.sfu.ca/~ssurjano/hart6.html (from Dixon and Szegö, Towards Global Optimisation 2, 1978).

The score of a configuration approaches its final value as `1 - exp(-epochs / tau)`, the exponential
model of Domhan, Springenberg and Hutter (IJCAI 2015). `tau` and the duration of an epoch differ
between configurations by lognormal factors, so that curves cross and some configurations take much
longer. Both depend on the configuration only.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["EPOCHS", "NAMES", "Curve", "curve"]

EPOCHS = 64
NAMES = tuple(f"x{i}" for i in range(6))

# Epochs until 63 % of the score is reached: the median, and the sigma of its lognormal.
TAU, TAU_SPREAD = 10.0, 0.5

_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
_A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


@dataclass(frozen=True)
class Curve:
    """The simulated training of a configuration: score after each epoch, seconds per epoch."""

    scores: tuple[float, ...]
    epoch_s: float


def curve(params: Mapping[str, float], median_s: float, spread: float) -> Curve:
    """Return the learning curve of a configuration.

    Args:
        params: a number in `[0, 1]` for each of `NAMES`.
        median_s: the median over configurations of the seconds per epoch.
        spread: the sigma of the lognormal distribution of these seconds.
    """
    x = np.array([params[name] for name in NAMES])
    score = float(_ALPHA @ np.exp(-(_A * (x - _P) ** 2).sum(axis=1)))
    random = np.random.default_rng(zlib.crc32(x.tobytes()))
    tau, slow = TAU * random.lognormal(0, TAU_SPREAD), random.lognormal(0, spread)
    scores = score * (1 - np.exp(-np.arange(1, EPOCHS + 1) / tau))
    return Curve(tuple(scores.tolist()), median_s * slow)
