"""The driver's loop without Spark: the rules that end a run before its last trial."""

import time
from typing import Any

import pytest

from sparkdl.errors import AllTrialsFailedError
from sparkdl.options import Options
from sparkdl.runner.loop.stop_rules import StopRules
from sparkdl.runs import Trial, TrialState
from sparkdl.runs.history import load
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from tests.helpers.in_memory_cluster import (
    Attempt,
    InMemoryCluster,
    Outcome,
    pruned,
    raised,
    returned,
)
from tests.helpers.loops import background, new_loop, request_of, run_trials

pytestmark = pytest.mark.usefixtures("quick_polls")

SPACE = Space.of({"x": Float(0.0, 1.0)})


# One trial after the other. With as many slots, one more would wait inside the cluster.
ONE: dict[str, Any] = {"parallelism": 1}


def outcomes(*values: float | Outcome) -> InMemoryCluster:
    """A cluster on which each trial has its outcome."""

    def run_task(attempt: Attempt) -> Outcome:
        value = values[attempt.number]
        return value if isinstance(value, Outcome) else returned(value)

    return InMemoryCluster(run_task, num_slots=2)


BAD = raised("ValueError: no")


def test_search_makes_num_trials_configurations(root: str) -> None:
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=5)
    run = run_trials(root, outcomes(*map(float, range(5))), search=search)
    assert len(run.trials) == 5
    assert len({trial.params["x"] for trial in run.trials}) == 5
    assert run.best.number == 4


def test_search_with_repeats_runs_each_configuration_several_times(root: str) -> None:
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=2, repeats=3)
    cluster = outcomes(1.0, 2.0, 3.0, 5.0, 5.0, 5.0)
    run = run_trials(root, cluster, search=search, **ONE)
    assert [trial.configuration for trial in run.trials] == [0, 0, 0, 1, 1, 1]
    assert run.means()[0][0] == 2.0
    assert run.best.configuration == 1


def test_search_ends_when_its_target_is_reached(root: str) -> None:
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=9, stop={"value": 0.5})
    run = run_trials(root, outcomes(0.1, 0.2, 0.7, 0.9), search=search, metric="value", **ONE)
    assert len([t for t in run.trials if t.state == "COMPLETE"]) == 3
    assert (run.state, run.reason) == ("COMPLETE", "stop: trial 2 has value 0.7, of 0.5")


def test_search_for_a_minimum_ends_at_a_smaller_value(root: str) -> None:
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=9, stop={"ms": 0.5})
    cluster = outcomes(*(returned(ms=ms) for ms in (0.9, 0.7, 0.4, 0.1)))
    run = run_trials(root, cluster, search=search, metric="ms", direction="min", **ONE)
    assert run.reason == "stop: trial 2 has ms 0.4, of 0.5"
    assert run.best.number == 2


def test_search_ends_when_its_patience_does(root: str) -> None:
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=9, patience=2)
    run = run_trials(root, outcomes(0.1, 0.5, 0.2, 0.3, 0.9), search=search, **ONE)
    assert (run.state, run.reason) == (
        "COMPLETE",
        "patience=2 configurations brought nothing better",
    )
    assert len(run.trials) == 4


def test_trials_that_wait_at_a_rung_use_patience_once_there_is_a_value_to_improve_on() -> None:
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=9, patience=2)
    rules = StopRules(Options(), search, {"value": "max"})
    paused = [Trial(number, {}, "", state=TrialState.PAUSED) for number in range(6)]
    assert [rules.trial_paused(trial) for trial in paused[:3]] == [None] * 3
    assert rules.trial_ended(Trial(6, {}, "", state=TrialState.COMPLETE, value=1.0)) is None
    assert rules.trial_paused(paused[3]) is None
    assert rules.trial_paused(paused[3]) is None  # It was counted before.
    stop = rules.trial_paused(paused[4])
    assert stop is not None and stop[0] == "COMPLETE" and stop[1].startswith("patience=2")


def test_run_ends_after_too_many_failures(root: str) -> None:
    cluster = outcomes(1.0, BAD, 1.0, BAD, 1.0, 1.0)
    run = run_trials(root, cluster, 6, max_failed_trials=1, **ONE)
    assert (run.state, run.reason) == ("FAILED", "more than max_failed_trials=1 trials failed")
    states = [str(trial.state) for trial in run.trials]
    assert states == ["COMPLETE", "FAILED", "COMPLETE", "FAILED", "CANCELLED", "CANCELLED"]


def test_running_trials_are_cancelled_when_the_run_ends(root: str) -> None:
    cluster = InMemoryCluster(num_slots=3)
    with background(new_loop(root, cluster, request_of(3, max_failed_trials=0))) as loop:
        cluster.attempt(1)
        cluster.attempt(2)
        cluster.attempt(0).end(BAD)
    assert [str(t.state) for t in loop.run.trials] == ["FAILED", "CANCELLED", "CANCELLED"]
    assert loop.run.trials[1].error is not None
    assert loop.run.trials[1].error.startswith("the run was stopped: more than max_failed")


def test_run_whose_first_trials_fail_alike_ends(root: str) -> None:
    loop = new_loop(root, outcomes(*[BAD] * 9), request_of(9, fail_fast_identical=3, **ONE))
    with pytest.raises(AllTrialsFailedError, match="ValueError: no"):
        loop.execute()
    assert loop.run.reason == "the first 3 trials failed alike: ValueError: no"
    assert loop.run.counts() == {"FAILED": 3, "CANCELLED": 6}


@pytest.mark.parametrize("other", [returned(1.0), raised("OSError: no"), pruned()])
def test_run_whose_first_trials_differ_goes_on(root: str, other: Outcome) -> None:
    cluster = outcomes(BAD, other, BAD, BAD, BAD)
    run = run_trials(root, cluster, 5, fail_fast_identical=3, **ONE)
    assert "CANCELLED" not in run.counts()


def test_search_whose_first_ten_trials_fail_alike_ends_by_itself(root: str) -> None:
    search = SearchSettings(space=SPACE, algorithm="random", num_trials=50)
    run = run_trials(root, outcomes(*[BAD] * 50), search=search, **ONE)
    assert run.state == "FAILED"
    assert run.counts()["FAILED"] == 10


def test_run_ends_when_its_time_is_over(root: str) -> None:
    cluster = InMemoryCluster(num_slots=2)
    with background(new_loop(root, cluster, request_of(4, timeout_s=0.2))) as loop:
        cluster.attempt(0).end(returned(1.0))
        cluster.attempt(1)
    assert (loop.run.state, loop.run.reason) == ("CANCELLED", "timeout_s=0.2 is over")
    states = [str(trial.state) for trial in loop.run.trials]
    assert states == ["COMPLETE", "CANCELLED", "CANCELLED", "CANCELLED"]


def test_search_without_another_end_is_complete_when_its_time_is_over(root: str) -> None:
    search = SearchSettings(space=SPACE, algorithm="random")
    cluster = InMemoryCluster(num_slots=1)
    with background(new_loop(root, cluster, request_of(search=search, timeout_s=0.2))) as loop:
        cluster.attempt(0).end(returned(1.0))
        cluster.attempt(1)
    assert (loop.run.state, loop.run.reason) == ("COMPLETE", "timeout_s=0.2 is over")


def test_search_ends_when_its_slot_hours_are_used_up(root: str) -> None:
    search = SearchSettings(space=SPACE, algorithm="random", max_slot_hours=0.1 / 3600)
    cluster = InMemoryCluster(num_slots=1)
    begun_s = time.monotonic()
    with background(new_loop(root, cluster, request_of(search=search))) as loop:
        cluster.attempt(0)
    assert time.monotonic() - begun_s >= 0.1
    assert loop.run.reason is not None
    assert loop.run.reason.startswith("max_slot_hours=")
    assert loop.run.reason.endswith("are used up")


def test_a_run_that_was_stopped_counts_what_ended_before_when_it_is_loaded(root: str) -> None:
    run = run_trials(root, outcomes(1.0, BAD, 1.0), 3, max_failed_trials=0, **ONE)
    again = load(run.path)
    assert again.counts() == {"COMPLETE": 1, "FAILED": 1, "CANCELLED": 1}
    assert again.reason == "more than max_failed_trials=0 trials failed"


# ---- a metric that no trial has


def named(*names: str) -> InMemoryCluster:
    """A cluster on which trial i returns a number under the i-th name, the last for all others."""

    def run_task(attempt: Attempt) -> Outcome:
        name = names[min(attempt.number, len(names) - 1)]
        return returned(**{name: 0.5, "epochs": 3})

    return InMemoryCluster(run_task, num_slots=1)


def test_a_misspelt_metric_ends_a_long_run_after_its_first_trial(root: str) -> None:
    cluster = named("accuracy")
    run = run_trials(root, cluster, 500, metric="acuracy", **ONE)
    assert len(cluster.started) < 5
    assert run.state == "FAILED"
    assert "had no 'acuracy', which metric= names, but accuracy, epochs. Did you mean" in (
        run.reason or ""
    )
    assert run.how_to_finish() == ""  # No resume can change the metric.
    with pytest.raises(AllTrialsFailedError, match="Did you mean 'accuracy'"):
        run.raise_unless_complete()


def test_a_metric_with_another_name_ends_a_long_run_after_three_trials(root: str) -> None:
    cluster = named("accuracy")
    run = run_trials(root, cluster, 500, metric="f1", **ONE)
    assert 3 <= len(cluster.started) < 8
    assert "the first 3 trials that ended had no 'f1'" in (run.reason or "")


@pytest.mark.parametrize(
    ("names", "num_trials", "options"),
    [
        (("loss", "loss", "f1"), 12, {"metric": "f1"}),  # The first ones have returned early.
        (("f1", "f2"), 12, {"metric": "f1"}),
        (("acuracy",), 5, {"metric": "accuracy"}),  # A short run is soon over anyway.
        (("acuracy",), 12, {"metric": "accuracy", "fail_fast_identical": 100}),
    ],
)
def test_other_runs_without_the_metric_go_on(
    root: str, names: tuple[str, ...], num_trials: int, options: dict[str, Any]
) -> None:
    cluster = named(*names)
    run_trials(root, cluster, num_trials, **ONE, **options)
    assert len(cluster.started) == num_trials


def test_a_metric_that_a_running_trial_reports_is_right(root: str) -> None:
    cluster = InMemoryCluster(num_slots=2)
    request = request_of(12, metric="score", logs="none", progress=True)
    with background(new_loop(root, cluster, request)) as loop:
        cluster.attempt(1).report(1, score=0.5)
        loop.run.trials[1].metrics["score"] = 0.5
        cluster.attempt(0).end(returned(scores=1.0))
        for number in range(1, 12):
            cluster.attempt(number).end(returned(score=1.0))
    assert loop.run.counts() == {"COMPLETE": 11, "INVALID": 1}
