"""The driver's loop without Spark: which failed trials are run again."""

import json

import pytest

from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.files import storage
from sparkdl.runner.loop import retries
from sparkdl.runs.retry_choice import waits_again
from sparkdl.runs.states import Failure
from tests.helpers.in_memory_cluster import (
    Attempt,
    InMemoryCluster,
    Outcome,
    killed,
    lost,
    raised,
    returned,
)
from tests.helpers.loops import background, events, journal_states, new_loop, request_of, run_trials

pytestmark = pytest.mark.usefixtures("quick_polls")


def failing(times: int, outcome: Outcome | BaseException) -> InMemoryCluster:
    """A cluster on which the first attempts of trial 0 fail."""

    def run_task(attempt: Attempt) -> Outcome:
        if attempt.number or attempt.attempt >= times:
            return returned(1.0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return InMemoryCluster(run_task, 1)


@pytest.mark.parametrize(
    ("max_restarts", "state", "attempts"), [(0, "FAILED", 1), (1, "FAILED", 2), (2, "COMPLETE", 3)]
)
def test_max_restarts_counts_failures_of_the_function(
    root: str, max_restarts: int, state: str, attempts: int
) -> None:
    cluster = failing(2, raised("ValueError: no"))
    run = run_trials(root, cluster, 2, max_restarts=max_restarts)
    trial = run.trials[0]
    assert (str(trial.state), trial.attempts) == (state, attempts)
    assert [a for number, a in cluster.started if number == 0] == list(range(attempts))
    if state == "FAILED":
        assert trial.error is not None
        assert trial.error.startswith("ValueError: no")
        assert trial.failure == Failure.EXCEPTION


@pytest.mark.parametrize(("max_losses", "state"), [(0, "FAILED"), (1, "FAILED"), (2, "COMPLETE")])
def test_max_losses_counts_lost_executors(root: str, max_losses: int, state: str) -> None:
    run = run_trials(root, failing(2, lost()), 2, max_losses=max_losses)
    assert run.trials[0].state == state
    assert run.trials[0].attempts == min(max_losses, 2) + 1
    if state == "FAILED":
        assert run.trials[0].failure == Failure.LOST
        assert storage.read(run.trials[0].path + "/error.txt") == b"its executor was lost"


def test_a_lost_executor_takes_nothing_from_the_budget_of_failures(root: str) -> None:
    ends: list[Outcome | BaseException] = [lost(), raised("ValueError: no"), lost(), returned(3.0)]

    def run_task(attempt: Attempt) -> Outcome:
        end = ends[attempt.attempt]
        if isinstance(end, BaseException):
            raise end
        return end

    run = run_trials(root, InMemoryCluster(run_task), 1, max_restarts=1, max_losses=2)
    assert run.trials[0].value == 3.0
    assert journal_states(run, 0) == [
        *("RUNNING", "LOST", "WAITING"),
        *("RUNNING", "WAITING"),
        *("RUNNING", "LOST", "WAITING"),
        *("RUNNING", "COMPLETE"),
    ]


def test_losses_without_a_limit_end_when_no_attempt_lives(root: str) -> None:
    """An executor that never starts is no matter of luck."""
    run = run_trials(root, failing(99, lost()), 2)
    assert run.trials[0].state == "FAILED"
    assert run.trials[0].attempts == retries.MAX_SHORT_LIVES


def test_losses_of_long_attempts_have_no_limit(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "SHORT_LIFE_S", 0.0)
    run = run_trials(root, failing(9, lost()), 2)
    assert run.trials[0].state == "COMPLETE"
    assert run.trials[0].attempts == 10


def test_attempt_that_spark_repeats_itself_is_recorded_as_a_loss(root: str) -> None:
    cluster = InMemoryCluster()
    with background(new_loop(root, cluster, request_of(1, max_losses=5))) as loop:
        attempt = cluster.attempt(0)
        attempt.repeat()
        attempt.repeat()
        attempt.end(returned(1.0))
    assert journal_states(loop.run, 0) == [
        *("RUNNING", "LOST"),
        *("RUNNING", "LOST"),
        *("RUNNING", "COMPLETE"),
    ]
    assert loop.run.trials[0].attempts == 3
    assert len(cluster.submitted) == 1


def test_attempts_that_spark_repeats_count_as_losses(root: str) -> None:
    def run_task(attempt: Attempt) -> Outcome:
        attempt.repeat()
        raise lost()

    run = run_trials(root, InMemoryCluster(run_task), 1, max_losses=1)
    assert run.trials[0].state == "FAILED"
    assert run.trials[0].attempts == 2


def test_error_of_spark_itself_is_not_retried(root: str) -> None:
    cluster = failing(9, JobFailed(JobEnd.ERROR, "ValueError: a row\nof Spark"))
    run = run_trials(root, cluster, 2, max_restarts=5)
    trial = run.trials[0]
    assert (str(trial.state), trial.attempts) == ("FAILED", 1)
    # No task has written this error.
    assert storage.read(trial.path + "/error.txt") == b"ValueError: a row\nof Spark"


def test_executor_that_was_killed_for_its_memory_is_a_failure_of_the_function(root: str) -> None:
    cluster = failing(1, JobFailed(JobEnd.MEMORY, "the cluster ended its executor"))
    run = run_trials(root, cluster, 2)
    assert run.trials[0].state == "FAILED"
    assert run.trials[0].failure == Failure.MEMORY
    cluster = failing(1, JobFailed(JobEnd.MEMORY, "the cluster ended its executor"))
    run = run_trials(root, cluster, 2, max_restarts=1, run_id="again")
    assert run.trials[0].state == "COMPLETE"


def test_trial_that_is_run_again_waits_behind_the_others(root: str) -> None:
    cluster = failing(1, raised("ValueError: no"))
    run_trials(root, cluster, 4, max_restarts=1, parallelism=1)
    assert cluster.started == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)]


def test_secrets_of_the_environment_are_masked_in_errors(root: str) -> None:
    cluster = failing(9, JobFailed(JobEnd.ERROR, "cannot log in with hunter22"))
    run = run_trials(root, cluster, 2, env={"PASSWORD": "hunter22"})
    assert "hunter22" not in (run.trials[0].error or "")
    assert "hunter22" not in json.dumps(events(run))


def test_failed_trial_is_not_run_again_after_the_run_was_stopped(root: str) -> None:
    def cancel_and_fail(attempt: Attempt) -> Outcome:
        loop.cancel(None)
        return raised("ValueError: no")

    cluster = InMemoryCluster(cancel_and_fail)
    loop = new_loop(root, cluster, request_of(2, max_restarts=9, parallelism=1))
    with background(loop):
        pass
    assert [str(trial.state) for trial in loop.run.trials] == ["FAILED", "CANCELLED"]
    assert cluster.started == [(0, 0)]
    assert loop.run.state == "CANCELLED"


def test_executor_that_is_lost_while_the_run_stops_is_no_failure(root: str) -> None:
    def cancel_and_lose(attempt: Attempt) -> Outcome:
        loop.cancel(None)
        raise lost()

    loop = new_loop(root, InMemoryCluster(cancel_and_lose), request_of(2, parallelism=1))
    with background(loop):
        pass
    assert loop.run.counts() == {"CANCELLED": 2}
    assert all(waits_again(trial) for trial in loop.run.trials)


@pytest.mark.parametrize(("max_losses", "attempts"), [(None, 2), (1, 2), (0, 1)])
def test_job_that_is_cancelled_outside_its_run_is_repeated_once(
    root: str, max_losses: int | None, attempts: int
) -> None:
    run = run_trials(root, failing(9, killed()), 2, max_losses=max_losses)
    assert [str(trial.state) for trial in run.trials] == ["CANCELLED", "COMPLETE"]
    assert run.trials[0].attempts == attempts
    assert run.state == "CANCELLED"
