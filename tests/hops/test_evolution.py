"""Differential evolution without Spark: bounds by type, generations, selection."""

import random
from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.hops.evolution import Evolution, dimensions_of
from sparkdl.search import Categorical, Float, Int


def test_the_types_of_the_bounds_decide() -> None:
    dimensions = dimensions_of(
        {
            "kernel": [2, 8],
            "rate": [0, 0.5],
            "down": [0.1, 0.001],
            "name": ["a", "b"],
            "one": [3, 3],
        }
    )
    assert dimensions == {
        "kernel": Int(2, 8),
        "rate": Float(0.0, 0.5),
        "down": Float(0.001, 0.1),
        "name": Categorical(["a", "b"]),
        "one": Categorical([3]),
    }
    assert dimensions_of({"save": [False, True]}) == {"save": Categorical([False, True])}


@pytest.mark.parametrize("bounds", [{}, {"x": [1]}, {"x": [1, 2, 3]}, {"x": 5}])
def test_bounds_that_are_not_two_are_refused(bounds: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        dimensions_of(bounds)


def test_generations_keep_within_the_bounds_and_never_get_worse() -> None:
    dimensions = dimensions_of({"x": [-4, 4], "y": [-1.0, 1.0], "way": ["up", "down"]})
    seen: list[dict[str, Any]] = []

    def evaluate(rows: list[dict[str, Any]]) -> list[float]:
        seen.extend(rows)
        return [-(row["x"] ** 2) - row["y"] ** 2 - (row["way"] == "up") for row in rows]

    evolution = Evolution(dimensions, population=8, seed=4)
    best = [max(scores) for scores in evolution.run(6, evaluate)]
    assert best == sorted(best)
    assert best[-1] > -0.1
    assert len(seen) == 8 * 7
    for row in seen:
        assert type(row["x"]) is int
        assert -4 <= row["x"] <= 4
        assert -1 <= row["y"] <= 1
        assert row["way"] in ("up", "down")


def test_an_individual_without_a_score_is_replaced() -> None:
    dimensions = dimensions_of({"x": [0.0, 1.0]})
    failing = iter([float("nan")] * 4)
    evolution = Evolution(dimensions, population=4, is_max=False, seed=1)
    *_, last = evolution.run(3, lambda rows: [next(failing, row["x"]) for row in rows])
    assert max(last) < 1


def test_too_small_a_population_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 4"):
        Evolution(dimensions_of({"x": [0, random.randint(1, 2)]}), population=3)
