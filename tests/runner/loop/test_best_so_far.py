"""The best trial is followed without a look at all trials at each end."""

from typing import Any

import pytest

from sparkdl.runner.loop.best_so_far import BestSoFar
from sparkdl.runs import Run, RunState, Trial, TrialState


def run_of(*values: float | None, repeats: int = 1, **fields: Any) -> Run:
    run = Run("one", "/runs/one", "one", "launch", repeats=repeats, **fields)
    for number, value in enumerate(values):
        state = TrialState.FAILED if value is None else TrialState.COMPLETE
        trial = Trial(number, {}, f"/runs/one/trials/{number}", configuration=number // repeats)
        trial.state, trial.value = state, value
        run.trials.append(trial)
    return run


def followed(run: Run) -> list[int | None]:
    """The best trial after the end of each trial, if there is a new one."""
    ended, run.trials = run.trials, []
    best = BestSoFar(run)
    numbers = []
    for trial in ended:
        run.trials.append(trial)
        new = best.update(trial)
        numbers.append(new and new.number)
    return numbers


@pytest.mark.parametrize(
    ("direction", "expected"),
    [("max", [0, None, 2, None, None]), ("min", [0, None, None, None, 4])],
)
def test_best_follows_the_direction(direction: Any, expected: list[int | None]) -> None:
    assert followed(run_of(0.5, None, 0.75, 0.75, 0.25, direction=direction)) == expected


def test_configuration_with_all_repeats_comes_before_any_other() -> None:
    # Configurations 0 and 1 with values of 1 and 2, and of 4 and 5.
    assert followed(run_of(1.0, 2.0, 4.0, 5.0, repeats=2)) == [0, 1, None, 3]


def test_front_of_several_metrics_grows() -> None:
    objectives = {"accuracy": "max", "size": "min"}
    run = run_of(0.5, 0.4, 0.6, metric="accuracy", objectives=objectives)
    for trial, size in zip(run.trials, (10, 20, 30), strict=True):
        trial.metrics = {"accuracy": float(trial.value or 0), "size": float(size)}
    assert followed(run) == [0, None, 2]


def test_resumed_run_begins_with_its_best_trial() -> None:
    run = run_of(0.5, 0.75)
    best = BestSoFar(run)
    run.trials += run_of(0.0, 0.0, 0.7, 0.8).trials[2:]
    assert [best.update(trial) for trial in run.trials[2:]] == [None, run.trials[3]]


def test_counts_of_a_search_are_of_all_its_trials_unless_it_needs_no_more() -> None:
    run = run_of(0.5, None, num_trials=50, repeats=2)
    for state in (RunState.RUNNING, RunState.CANCELLED):
        run.state = state
        assert run.counts_text() == "1 of 100 trials complete, 1 failed"
    run.state = RunState.COMPLETE
    assert run.counts_text() == "1 of 2 trials complete, 1 failed"
