"""Runs anywhere. The values that the metrics of drift reach by chance, without drift.

A window is a sample: its histogram differs from that of the training data even if nothing has
changed, the more the fewer rows it has, and the largest of many differences is larger than one.
Each function returns the value that a metric exceeds with the probability `alpha` at most, if the
data is as in the training.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np

from sparkdl.monitoring.distances import Counts, shares_of

# The probability of an alarm in a window without drift, over all features and metrics.
ALARM_RATE = 0.01
# Pairs of samples without drift that are drawn.
NUM_DRAWS = 200
# Degrees of freedom for which the approximation of the quantile is close enough.
_MIN_DEGREES = 1.0
# Counts from this mean on are drawn as normal numbers, which are never negative then.
_MANY = 100


def chi2_quantile(alpha: float, num_degrees: float) -> float:
    """Return the value that a chi-squared variable exceeds with a probability.

    The approximation of Wilson and Hilferty (1931) is at most 3 % too small, and 16 % too large.

    Example:
        >>> round(chi2_quantile(0.001, 10), 1)  # 29.6 in tables.
        29.8
    """
    share = 2 / (9 * num_degrees)
    root = 1 - share + NormalDist().inv_cdf(1 - alpha) * math.sqrt(share)
    return num_degrees * root**3


def drawn(
    distance: Callable[[Any, Any], Any],
    reference: Counts,
    counts: Counts,
    sizes: tuple[int, int],
    alpha: float,
) -> float:
    """Return the distance of two histograms by chance.

    Pairs of samples are drawn from the histogram of both together, always the same ones. For small
    differences and many values in each bin, the distances are those of a statistic of Pearson up to
    a factor; otherwise, they are not. The probability is therefore that of a multiple of a
    chi-squared variable with the mean and the variance of the drawn distances (Satterthwaite 1946).

    Args:
        distance: the distance, or its square, of arrays whose last axis has the bins.
        reference: the counts of the training data.
        counts: the counts of other data.
        sizes: the numbers of independent values of both.
        alpha: the probability of a larger value.
    """
    both = np.asarray(reference, np.float64) + np.asarray(counts, np.float64)
    shares = shares_of(both[both > 0])
    random = np.random.default_rng(0)
    values = distance(*(_sample(random, shares * size) for size in sizes))
    mean, variance = float(values.mean()), float(values.var())
    if variance == 0:
        return mean
    num_degrees = max(2 * mean**2 / variance, _MIN_DEGREES)
    return mean / num_degrees * chi2_quantile(alpha, num_degrees)


def _sample(random: np.random.Generator, means: Any) -> Any:
    """Return counts with these means: Poisson's or, where they are many, normal numbers."""
    counts = means + np.sqrt(means) * random.standard_normal((NUM_DRAWS, len(means)))
    few = means < _MANY
    counts[:, few] = random.poisson(means[few], (NUM_DRAWS, int(few.sum())))
    return counts


def ks(reference: Counts, sizes: tuple[int, int], alpha: float) -> float:
    """Return the Kolmogorov-Smirnov statistic by chance, see `drawn` (Massart 1990)."""
    return math.sqrt(math.log(2 / alpha) / 2 * _scale(sizes))


def wasserstein(reference: Counts, sizes: tuple[int, int], alpha: float) -> float:
    """Return the Wasserstein distance in widths of a bin by chance, see `drawn`.

    The mean of the distance is at most the integral of the standard deviation of the distribution
    function, and the distance is concentrated around its mean as the mean of the values is (Bobkov
    and Ledoux 2019, Borell 1975).
    """
    shares = shares_of(reference)
    below = shares.cumsum()
    places = np.arange(len(shares))
    std = math.sqrt(max(0.0, float((shares * places**2).sum() - (shares * places).sum() ** 2)))
    mean = float(np.sqrt(np.clip(below * (1 - below), 0, None)).sum())
    return (mean + std * math.sqrt(2 * math.log(1 / alpha))) * math.sqrt(_scale(sizes))


def _scale(sizes: tuple[int, int]) -> float:
    return sum(1 / size for size in sizes)
