"""Samplers that learn from the values of trials at rungs."""

import logging
import random
from statistics import fmean

import optuna
import pytest

from sparkdl.runs import TrialState
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from sparkdl.search.study import Study

SPACE = Space.of({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})


def study_of(algorithm: str, direction: str = "max", space: Space = SPACE) -> Study:
    pruner = {"asha": {"promote": True}}
    search = SearchSettings(space=space, algorithm=algorithm, pruner=pruner, num_trials=99)
    return Study(search, {"score": direction}, seed=1)


def reach(study: Study, rung: int, count: int, best: float, sign: float = 1.0) -> None:
    """Let trials reach a rung whose values are best where x is."""
    draw = random.Random(rung)
    for _ in range(count):
        x = draw.random()
        study.reach({"x": x, "y": draw.random()}, rung, -sign * abs(x - best))


def proposed(study: Study, count: int = 24, first: int = 0) -> list[float]:
    return [study.ask(first + number)["x"] for number in range(count)]


@pytest.mark.parametrize(("direction", "sign"), [("max", 1.0), ("min", -1.0)])
def test_tpe_learns_from_the_highest_rung_with_enough_trials(direction: str, sign: float) -> None:
    study = study_of("tpe", direction)
    reach(study, 1, 9, 0.9, sign)
    before = proposed(study)
    assert min(before) < 0.2 < 0.8 < max(before)  # With nine, the points are random.
    reach(study, 1, 30, 0.9, sign)
    reach(study, 4, 9, 0.1, sign)
    assert fmean(proposed(study, first=24)) > 0.75
    reach(study, 4, 20, 0.1, sign)
    assert fmean(proposed(study, first=48)) < 0.25


def test_complete_trials_are_above_all_rungs() -> None:
    study = study_of("tpe")
    reach(study, 16, 40, 0.9)
    draw = random.Random(0)
    for _ in range(30):
        x = draw.random()
        study.add_finished({"x": x, "y": draw.random()}, TrialState.COMPLETE, [-abs(x - 0.1)])
    assert fmean(proposed(study)) < 0.25


def test_model_of_a_rung_grows_with_it() -> None:
    """Trials with another choice come when the sampler has read the first trials of the rung."""
    choices = {"left": {"x": Float(0.0, 1.0)}, "right": {"y": Float(0.0, 1.0)}}
    study = study_of("tpe", space=Space.of({"a": choices, "d": Float(0.0, 1.0)}))
    draw = random.Random(0)
    for _ in range(12):
        study.reach({"a": "left", "d": draw.random(), "x": draw.random()}, 1, -1.0)
    for number in range(6):
        study.ask(number)
    for _ in range(40):
        study.reach({"a": "right", "d": draw.random(), "y": draw.random()}, 1, 1.0)
    asked = [study.ask(number)["a"] for number in range(6, 66)]
    # The TPE of Optuna 4 proposes other points with the same options.
    assert asked.count("right") > (55 if int(optuna.__version__.split(".")[0]) >= 5 else 48)


def test_bohb_draws_a_third_of_its_points_at_random() -> None:
    study = study_of("bohb")
    reach(study, 1, 4, 0.9)
    assert len([x for x in proposed(study) if x < 0.7]) > 8  # Five are needed for a model.
    reach(study, 1, 100, 0.9)
    far = [x for x in proposed(study, 90, 24) if abs(x - 0.9) > 0.2]
    assert 0.1 < len(far) / 90 < 0.4


def test_algorithms_without_a_model_and_values_that_are_no_numbers_are_no_error() -> None:
    study = study_of("random")
    study.reach({"x": 0.5, "y": 0.5}, 1, 1.0)
    study = study_of("bohb")
    for _ in range(9):
        study.reach({"x": 0.5, "y": 0.5}, 1, float("nan"))
    assert len({*proposed(study)}) == 24


def test_studies_of_rungs_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    optuna.logging.enable_propagation()
    try:
        with caplog.at_level(logging.INFO):
            reach(study_of("tpe"), 1, 3, 0.5)
    finally:
        optuna.logging.disable_propagation()
    assert not caplog.records
