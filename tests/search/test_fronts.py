"""Fronts and hypervolumes, against brute force and against Optuna's."""

import itertools
import math
import random

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.search.fronts import Point, best_points, contribution, fronts, hypervolume

GRIDS = st.integers(2, 4).flatmap(
    lambda size: st.lists(st.tuples(*[st.integers(0, 5)] * size), min_size=1, max_size=24)
)


def dominates(a: Point, b: Point) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def peeled(points: dict[int, Point]) -> list[list[int]]:
    """Take away all points that no other point dominates, again and again."""
    found, left = [], dict(points)
    while left:
        front = [k for k, p in left.items() if not any(dominates(q, p) for q in left.values())]
        found.append(sorted(front))
        for key in front:
            del left[key]
    return found


def inclusion_exclusion(points: list[Point], reference: Point) -> float:
    """Add and subtract the common boxes of all sets of points."""
    volume = 0.0
    for size in range(1, len(points) + 1):
        for chosen in itertools.combinations(points, size):
            corner = [max(column) for column in zip(*chosen, strict=True)]
            sides = [max(0.0, r - c) for c, r in zip(corner, reference, strict=True)]
            volume -= (-1) ** size * math.prod(sides)
    return volume


@given(GRIDS)
def test_fronts_are_those_of_brute_force_with_ties(points: list[Point]) -> None:
    by_key = dict(enumerate(points))
    assert fronts(by_key) == peeled(by_key)


@pytest.mark.parametrize("size", [2, 3])
def test_first_front_has_the_best_trials_of_optuna(size: int) -> None:
    draw = random.Random(size)
    points = {n: tuple(draw.random() for _ in range(size)) for n in range(60)}
    study = optuna.create_study(directions=["minimize"] * size)
    study.add_trials([optuna.create_trial(values=list(point)) for point in points.values()])
    assert fronts(points)[0] == sorted(trial.number for trial in study.best_trials)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_hypervolume_is_that_of_inclusion_and_exclusion(size: int) -> None:
    draw = random.Random(size)
    for _ in range(20):
        points = [tuple(draw.randrange(6) / 4 for _ in range(size)) for _ in range(7)]
        reference = (1.0,) * size
        expected = inclusion_exclusion(points, reference)
        assert hypervolume(points, reference) == pytest.approx(expected, abs=1e-12)
        without = inclusion_exclusion(points[1:], reference)
        own = contribution(points[0], points[1:], reference)
        assert own == pytest.approx(expected - without, abs=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_hypervolume_of_many_points_is_that_of_optuna(size: int) -> None:
    wfg = pytest.importorskip("optuna._hypervolume.wfg")
    points = np.random.default_rng(size).random((40, size))
    expected = wfg.compute_hypervolume(points, np.ones(size))
    assert hypervolume(map(tuple, points.tolist()), (1.0,) * size) == pytest.approx(expected)


def test_whole_fronts_come_first_and_the_last_one_is_spread() -> None:
    """Of seven points on a line, the middle and the ends: the rest is close to one of them."""
    line: dict[int, Point] = {n: (n / 6, 1 - n / 6) for n in range(7)}
    worse: dict[int, Point] = {7 + n: (x + 1, y + 1) for n, (x, y) in line.items()}
    assert best_points(worse | line, 7) == [*range(7)]
    assert best_points(worse | line, 8) == [*range(7), 10]
    assert best_points(line, 1) == [3]
    assert {*best_points(line, 3)} in ({3, 1, 5}, {3, 0, 6}, {3, 1, 6}, {3, 0, 5})


@pytest.mark.parametrize("count", [1, 2, 4])
def test_chosen_points_have_nearly_the_largest_hypervolume(count: int) -> None:
    """The greedy choice has at least 1 - 1/e of the best set, see Nemhauser et al. (1978)."""
    draw = random.Random(count)
    for _ in range(10):
        angles = [draw.random() * math.pi / 2 for _ in range(9)] + [0.0, math.pi / 2]
        points: dict[int, Point] = {
            n: (1 - math.sin(angle), 1 - math.cos(angle)) for n, angle in enumerate(angles)
        }
        reference = (1.1, 1.1)
        sets = itertools.combinations(points.values(), count)
        best = max(inclusion_exclusion([*chosen], reference) for chosen in sets)
        own = [points[key] for key in best_points(points, count)]
        assert inclusion_exclusion(own, reference) >= (1 - 1 / math.e) * best


@given(GRIDS, st.integers(0, 24), st.randoms())
def test_choice_depends_on_neither_order_nor_scale(
    points: list[Point], count: int, draw: random.Random
) -> None:
    by_key = dict(enumerate(points))
    chosen = best_points(by_key, count)
    assert len(chosen) == len({*chosen}) == min(count, len(points))
    keys = [*by_key]
    draw.shuffle(keys)
    assert best_points({key: by_key[key] for key in keys}, count) == chosen
    # Powers of two are exact.
    moved = {key: tuple(value * 2.0**i + 8 for i, value in enumerate(by_key[key])) for key in keys}
    assert best_points(moved, count) == chosen


def test_very_large_numbers_are_no_error() -> None:
    points: dict[int, Point] = {0: (-1e308, 1e308), 1: (0.0, 0.0), 2: (1e308, -1e308)}
    assert best_points(points, 1) == [1]
