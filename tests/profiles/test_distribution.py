"""Distributions of values in limited memory, compared with NumPy."""

import numpy as np
import pytest

from sparkdl.profiles.distribution import Distribution
from sparkdl.profiles.histograms import Edges, doane_bins
from sparkdl.profiles.moments import Moments, Shape

VALUES = {
    "normal": np.random.default_rng(1).normal(size=100_000),
    "lognormal": np.random.default_rng(2).lognormal(sigma=3.0, size=100_000),
    "zeros": np.append(np.zeros(50_000), np.random.default_rng(3).normal(size=50_000)),
    "whole": np.random.default_rng(4).poisson(3, size=100_000).astype(float),
}


@pytest.mark.parametrize("name", VALUES)
def test_distribution_of_parts_is_that_of_all_values(name: str) -> None:
    values = VALUES[name]
    parts = [Distribution.of(part, 4096) for part in np.array_split(values, 7)]
    total = Distribution.sum(parts, 4096)
    assert len(total.ranges) <= 4096
    assert total.counts.sum() == len(values)
    known = total.values()
    assert (np.diff(known) > 0).all()
    # Every quantile is within the width of a range, and the counts between quantiles are exact.
    edges = total.quantiles(10)
    width = 2.0 ** (total.shift - 52)
    wanted = np.quantile(values, np.arange(1, 10) / 10, method="inverted_cdf")
    if name in ("normal", "lognormal"):
        assert edges == pytest.approx(wanted.tolist(), rel=width, abs=1e-300)
    exact = np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1)
    found = Edges(quantiles=tuple(edges), low=-1.0, high=1.0).count(known, total.counts)
    assert found.quantiles.tolist() == exact.tolist()


def test_few_values_are_exact_also_special_ones() -> None:
    values = np.array([-np.inf, -1e308, -5e-324, -0.0, 0.0, 5e-324, 1.5, np.inf, np.inf])
    found = Distribution.sum([Distribution.of(values[:4]), Distribution.of(values[4:])])
    assert found.values().tolist() == [-np.inf, -1e308, 0.0, 1.5, np.inf]
    assert found.counts.tolist() == [1, 1, 4, 1, 2]
    assert Distribution.of(values, 2).counts.sum() == len(values)
    assert Distribution.sum([]).quantiles(10) == []


@pytest.mark.parametrize("name", VALUES)
def test_moments_and_doane_bins_are_those_of_numpy(name: str) -> None:
    values = VALUES[name]
    total = Moments()
    for part in np.array_split(values, 7):
        total += Moments.of(part)
    whole = Moments.of(values)
    assert (total.mean, total.squares) == pytest.approx((whole.mean, whole.squares))
    assert total.cubes == pytest.approx(whole.cubes, rel=1e-6)
    shape = Shape.of(total, *np.unique(values, return_counts=True))
    assert doane_bins(total, shape) == len(np.histogram_bin_edges(values, "doane")) - 1
