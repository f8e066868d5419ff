"""Acceptance check A15 as a pure rule: a value that is no number makes a trial INVALID."""

import itertools
import math
from typing import Any

import pytest

from sparkdl.runs import Run, Trial
from sparkdl.runs.states import (
    Failure,
    RunState,
    TrialState,
    evaluate_metric,
    lacks_metric,
    natural_state,
)


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
    assert (evaluate_metric({"loss": 1}, {}, "accuracy").reason or "").endswith(
        "; got loss. Return a number under this name"
    )
    missing = evaluate_metric({"loss": 1}, {}, "accuracy").reason
    assert lacks_metric(missing, "accuracy") and not lacks_metric(missing, "loss")
    assert not lacks_metric("metric 'accuracy' is nan", "accuracy")
    assert not lacks_metric(None, "accuracy")
    misspelt = evaluate_metric({"acuracy": 1}, {}, "accuracy").reason or ""
    assert misspelt.endswith(
        "got acuracy. Return a number under this name, or pass metric='acuracy'"
    )


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
        assert f"Pass metric={name!r} and direction={other!r}, or" in (launched.note or "")
        for metric, way in ((name, direction), (None, other), (None, None)):
            assert evaluate_metric(returned, reported, metric, True, way).value == 0.5


@pytest.mark.parametrize(
    ("outputs", "note"),
    [
        ({"value": [0.5]}, "'value' is a list"),
        ({"file": "a.txt", "curve": [0.5, 0.9]}, "'curve' is a list"),
        ({"value": "high"}, "'value' is text"),
        ({"file": "a.txt"}, None),
        ({"a": 1, "b": 2, "curve": [0.5]}, None),
        ({}, "the function returned nothing (None)"),
    ],
)
def test_a_trial_without_a_number_says_why_where_trials_are_compared(
    outputs: dict[str, Any], note: str | None
) -> None:
    verdict = evaluate_metric(outputs, {}, None, direction="max")
    assert (verdict.state, verdict.value) == ("COMPLETE", None)
    assert note in verdict.note if note and verdict.note else verdict.note == note
    assert evaluate_metric(outputs, {}, None).note is None
    assert evaluate_metric(outputs, {"accuracy": 0.5}, "accuracy", direction="max").note is None


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({"COMPLETE": 1, "FAILED": 5}, "COMPLETE"),
        ({"PRUNED": 1, "INVALID": 1}, "COMPLETE"),
        ({"FAILED": 1, "CANCELLED": 3}, "FAILED"),
        ({"INVALID": 1}, "FAILED"),
        ({"CANCELLED": 2}, "CANCELLED"),
        ({}, "CANCELLED"),
    ],
)
def test_the_state_of_a_run_follows_from_those_of_its_trials(
    counts: dict[str, int], state: str
) -> None:
    assert natural_state(counts) == state


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
    assert str(Failure.GPU) == f"{Failure.GPU}" == "GPU fault"
    going_on = {"WAITING", "RUNNING", "PAUSED", "LOST"}
    for state in (*TrialState, *RunState):
        assert state.is_final is (state not in going_on)
