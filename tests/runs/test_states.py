"""Acceptance check A15 as a pure rule: a value that is no number makes a trial INVALID."""

import itertools
import math
from typing import Any

import pytest

from sparkdl.runs import Run, Trial
from sparkdl.runs.states import TrialState, evaluate_metric


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "high", [0.5]])
def test_evaluate_metric_of_no_number_is_invalid(value: Any) -> None:
    verdict = evaluate_metric({"accuracy": value}, {}, "accuracy")
    assert verdict.state == "INVALID"
    assert verdict.value is None
    assert "accuracy" in (verdict.reason or "")


def test_evaluate_metric_finds_the_metric() -> None:
    assert evaluate_metric({"loss": 0.1, "accuracy": 0.9}, {}, "accuracy").value == 0.9
    assert evaluate_metric({}, {"accuracy": 0.8}, "accuracy").value == 0.8
    assert evaluate_metric({"value": 3}, {}, None).value == 3.0
    assert evaluate_metric({"file": "a.txt", "only": 2}, {}, None).value == 2.0
    assert evaluate_metric({"a": 1, "b": 2}, {}, None).value is None
    assert evaluate_metric({}, {}, None).state == "COMPLETE"
    assert (evaluate_metric({"loss": 1}, {}, "accuracy").reason or "").endswith("; got loss")
    misspelt = evaluate_metric({"acuracy": 1}, {}, "accuracy").reason or ""
    assert misspelt.endswith("got acuracy. Return it under this name, or pass metric='acuracy'")


@pytest.mark.parametrize(
    ("name", "direction"), [("val_loss", "max"), ("loss", "max"), ("accuracy", "min")]
)
def test_number_whose_name_tells_the_other_direction_has_no_value(
    name: str, direction: str
) -> None:
    for returned, reported in (({name: 0.5}, {}), ({}, {name: 0.5})):
        searched = evaluate_metric(returned, reported, None, True, direction)
        assert (searched.state, searched.value) == ("INVALID", None)
        assert f"Pass metric={name!r} and direction=" in (searched.reason or "")
        launched = evaluate_metric(returned, reported, None, False, direction)
        assert (launched.state, launched.value) == ("COMPLETE", None)
        assert f"Pass metric={name!r}" in (launched.note or "")
        other = "min" if direction == "max" else "max"
        for metric, way in ((name, direction), (None, other), (None, None)):
            assert evaluate_metric(returned, reported, metric, True, way).value == 0.5


@pytest.mark.parametrize("order", list(itertools.permutations([0.5, 0.9, None, None])))
@pytest.mark.parametrize("direction", ["max", "min"])
def test_best_is_right_in_any_order(order: tuple[Any, ...], direction: Any) -> None:
    trials = [
        Trial(i, {}, "", state=TrialState.COMPLETE if v else TrialState.INVALID, value=v)
        for i, v in enumerate(order)
    ]
    run = Run("r", "", "r", "launch", direction=direction, trials=trials)
    assert run.best.value == (0.9 if direction == "max" else 0.5)
    assert [t.value for t in run.top(5)] == sorted([0.5, 0.9], reverse=direction == "max")


def test_states_are_text() -> None:
    assert TrialState.COMPLETE == "COMPLETE"
    assert f"{TrialState.COMPLETE}" == str(TrialState.COMPLETE) == "COMPLETE"
    assert TrialState.FAILED.is_final
    assert not TrialState.LOST.is_final
