"""The loop and executors that may be at fault, without Spark."""

import threading

import pytest

from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.errors import AllTrialsFailedError
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.request import Request
from sparkdl.runs import TrialState
from sparkdl.runs.states import Failure
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import background, new_loop, request_of, run_trials
from tests.helpers.processes import eventually

pytestmark = pytest.mark.usefixtures("quick_polls")

EXCLUDES = {"spark.excludeOnFailure.taskAndStage.enabled": "true"}


def three_executors(num_slots: int = 1) -> InMemoryCluster:
    cluster = InMemoryCluster(num_slots=num_slots, conf=EXCLUDES)
    cluster.executors_in_order = ["1", "2", "3"]
    return cluster


def one_at_a_time(num_trials: int) -> Request:
    """A request of whose trials none waits inside Spark, which would start it before a repeat."""
    return request_of(num_trials, parallelism=1)


def fault() -> Outcome:
    return raised("CUDA_ERROR_ECC_UNCORRECTABLE", Failure.GPU)


def test_trial_that_fails_first_ends_a_run_with_smoke_at_once(root: str) -> None:
    cluster = three_executors(num_slots=3)
    with pytest.raises(AllTrialsFailedError) as caught:
        request = request_of(4, root=root, smoke=True)
        threading.Timer(0.0, lambda: cluster.attempt(0).end(raised("ValueError: no"))).start()
        execute(request, cluster)
    assert caught.value.run.trials[0].state == "FAILED"
    assert cluster.submitted == [0]


def test_trial_with_a_fault_of_its_gpu_runs_on_another_executor(root: str) -> None:
    def run(attempt: Attempt) -> Outcome:
        return fault() if attempt.executor == "1" else returned(1.0)

    cluster = three_executors()
    cluster._run_task = run
    ended = run_trials(root, cluster, 3)
    assert [trial.state for trial in ended.trials] == ["COMPLETE"] * 3
    # Spark may have got the next trial before the fault was known.
    assert {*cluster.started} - {(1, 1)} == {(0, 0), (0, 1), (1, 0), (2, 0)}


def test_cancel_of_the_trial_that_shows_what_is_at_fault_clears_the_executor(root: str) -> None:
    cluster = three_executors(num_slots=2)
    with background(new_loop(root, cluster, one_at_a_time(3))) as loop:
        cluster.attempt(0).end(fault())
        repeated = cluster.attempt(0, 1)
        assert repeated.executor == "2"
        loop.cancel(0)
        cluster.attempt(1).end(returned(1.0))
        after = cluster.attempt(2)
        assert after.executor == "1"
        after.end(returned(1.0))
    assert loop.run.trials[0].state == "CANCELLED"


def test_suspected_executor_gets_trials_again_after_the_time_that_spark_is_told(root: str) -> None:
    cluster = three_executors(num_slots=2)
    cluster._conf |= {"spark.excludeOnFailure.timeout": "0s"}
    with background(new_loop(root, cluster, one_at_a_time(2))) as loop:
        cluster.attempt(0).end(fault())
        repeated = cluster.attempt(0, 1)
        repeated.end(returned(1.0))
        last = cluster.attempt(1)
        assert last.executor == "1"
        last.end(returned(1.0))
    assert loop.run.counts() == {"COMPLETE": 2}
    assert not loop.run.excluded


def test_cancel_of_a_trial_whose_failure_may_not_count_lets_the_failure_count(root: str) -> None:
    cluster = three_executors()
    with background(new_loop(root, cluster, request_of(2))) as loop:
        cluster.attempt(0).end(raised("ValueError: no"))
        second = cluster.attempt(1)
        loop.cancel(0)
        trial = loop.run.trials[0]
        assert eventually(lambda: trial.state == TrialState.FAILED)
        second.end(returned(1.0))


def test_trial_for_which_spark_has_no_executor_twice_runs_again_as_after_a_loss(root: str) -> None:
    ends = [JobFailed(JobEnd.AVOIDED, "Spark has no executor that is not excluded")] * 2

    def run(attempt: Attempt) -> Outcome:
        if ends:
            raise ends.pop()
        return returned(1.0)

    cluster = three_executors()
    cluster._run_task = run
    assert run_trials(root, cluster, 1).trials[0].state == "COMPLETE"
