"""Runs anywhere. Distances between two histograms with the same bins.

Every function takes the counts of the reference and those of other data. Bins of the same position
belong together; the numbers of values may differ. `psi`, `js`, `hellinger` and `l_infinity` also
take arrays of several histograms, whose last axis has the bins.
"""

from typing import Any

import numpy as np

from sparkdl.host.optional_packages import require

Counts = Any  # An array of counts, or what NumPy makes one of.

# Added to each share, because the logarithm of an empty bin is infinite (as Hopsworks does).
PSI_EPSILON = 1e-6
# The number of values that Pearson's test needs to expect in a category.
MIN_EXPECTED = 5


def shares_of(counts: Counts) -> Any:
    """Return the share of each bin; 0 of no values."""
    counts = np.asarray(counts, np.float64)
    total = counts.sum(axis=-1, keepdims=True)
    return counts / np.where(total == 0, 1, total)


def _value(distances: Any) -> Any:
    """Return the number of one pair of histograms, or an array."""
    return float(distances) if np.ndim(distances) == 0 else distances


def psi(reference: Counts, counts: Counts) -> Any:
    """Return the population stability index: the symmetric Kullback-Leibler divergence, in nats.

    Below 0.1 little has changed; above 0.2 much has.

    Example:
        >>> round(psi([50, 50], [60, 40]), 6)
        0.040546
    """
    p, q = shares_of(reference) + PSI_EPSILON, shares_of(counts) + PSI_EPSILON
    return _value(((q - p) * np.log(q / p)).sum(axis=-1))


def js(reference: Counts, counts: Counts) -> Any:
    """Return the Jensen-Shannon distance: the root of the divergence in bits, from 0 to 1.

    Example:
        >>> js([1, 0], [0, 1]), js([1, 1], [5, 5])
        (1.0, 0.0)
    """
    p, q = shares_of(reference), shares_of(counts)
    middle = (p + q) / 2

    def divergence(shares: Any) -> Any:
        some = shares > 0
        ratio = np.divide(shares, middle, out=np.ones_like(shares), where=some)
        return (shares * np.log2(ratio)).sum(axis=-1)

    return _value(np.sqrt(np.maximum(0.0, (divergence(p) + divergence(q)) / 2)))


def hellinger(reference: Counts, counts: Counts) -> Any:
    """Return the Hellinger distance, from 0 to 1.

    Example:
        >>> hellinger([1, 0], [0, 1])
        1.0
    """
    roots = np.sqrt(shares_of(reference)) - np.sqrt(shares_of(counts))
    return _value(np.sqrt((roots**2).sum(axis=-1) / 2))


def ks(reference: Counts, counts: Counts) -> float:
    """Return the Kolmogorov-Smirnov statistic: the largest difference of the shares below a value.

    Example:
        >>> ks([1, 1, 0], [0, 1, 1])
        0.5
    """
    return float(
        np.abs(shares_of(reference).cumsum() - shares_of(counts).cumsum()).max(initial=0.0)
    )


def wasserstein(reference: Counts, counts: Counts) -> float:
    """Return the Wasserstein distance, in widths of a bin.

    Example:
        >>> wasserstein([1, 0, 0], [0, 0, 1])
        2.0
    """
    return float(np.abs(shares_of(reference).cumsum() - shares_of(counts).cumsum()).sum())


def l_infinity(reference: Counts, counts: Counts) -> Any:
    """Return the largest difference between the shares of a bin.

    Example:
        >>> l_infinity([1, 1], [1, 3])
        0.25
    """
    return _value(np.abs(shares_of(reference) - shares_of(counts)).max(axis=-1, initial=0.0))


def chi_squared(reference: Counts, counts: Counts) -> float:
    """Return the p-value of Pearson's test: small if the data does not have the reference's shares.

    The test is wrong where few values are expected: categories of which the reference lets expect
    fewer than five (Cochran 1954), new ones among them, are one category. If fewer than five are
    expected of that one, too, it counts only with more than five values, as if five were expected:
    a single new text is no alarm, and many are.

    Raises:
        MissingPackageError: if SciPy is not installed.

    Example:
        >>> round(chi_squared([16, 18, 16, 14, 12, 12], [16, 16, 16, 16, 16, 8]), 5)
        0.67309
        >>> chi_squared([500, 500, 0], [500, 499, 1]) > 0.9
        True
        >>> chi_squared([500, 500, 0], [480, 480, 40]) < 1e-9
        True
    """
    require("scipy", "the metric 'chi_squared'")
    from scipy.stats import chi2

    counts = np.asarray(counts, np.float64)
    expected = shares_of(reference) * counts.sum()
    is_rare = expected < MIN_EXPECTED
    num_rare, num_expected = counts[is_rare].sum(), expected[is_rare].sum()
    counts, expected = counts[~is_rare], expected[~is_rare]
    if max(num_rare, num_expected) > MIN_EXPECTED:
        counts = np.append(counts, num_rare)
        expected = np.append(expected, max(num_expected, MIN_EXPECTED))
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(chi2.sf(statistic, max(1, len(counts) - 1)))
