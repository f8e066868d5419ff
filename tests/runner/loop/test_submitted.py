"""The trials that were handed to a cluster, and the files that their tasks leave."""

import time
from concurrent.futures import Future

import pytest

from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.cluster.topology import SingleTopology, SparkJob
from sparkdl.files import polling, storage
from sparkdl.files.layout import RunPaths
from sparkdl.runner.loop import submitted as module
from sparkdl.runner.loop.submitted import SubmittedTrial, SubmittedTrials
from sparkdl.runs.trial import Trial
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.in_memory_cluster import InMemoryCluster


def submitted_trial(paths: RunPaths, number: int, seen: int) -> SubmittedTrial:
    """Return a trial whose job goes on, with the last start that was seen."""
    return SubmittedTrial(
        trial=Trial(number, {}, paths.trial(number).folder),
        job=SparkJob(InMemoryCluster().submit),
        rows=Future(),
        submitted_s=time.monotonic(),
        first=0,
        newest_attempt=seen,
    )


def test_running_trials_are_looked_at_now_and_then(
    counting_store: CountingStore,  # noqa: F811
    clock: list[float],
) -> None:
    """Spark repeats few tasks, and each look at a trial is a request to the store."""
    plan = Plan(kind="launch", roles=(Role(name="worker", count=1),))
    paths = RunPaths(counting_store.url("run"))
    trials = SubmittedTrials(InMemoryCluster(), plan, SingleTopology(), paths)
    trials._submitted = {n: submitted_trial(paths, n, seen=0 if n else -1) for n in range(30)}
    for seconds, requests in ((0, 30), (3, 1), (6, 1), (30, 30)):
        counting_store.requests.clear()
        clock[0] = 1000.0 + seconds
        assert list(trials.starts()) == []
        assert len(counting_store.requests) == requests
    storage.write(paths.trial(0).attempt(0), "{}")
    storage.write(paths.trial(1).attempt(1), "{}")
    assert [(each.trial.number, attempt) for each, attempt in trials.starts()] == [(0, 0)]
    trials._submitted[1].rows.set_result([])
    assert [(each.trial.number, attempt) for each, attempt in trials.starts()] == [(1, 1)]


def cut_short(root: str) -> tuple[SubmittedTrials, SubmittedTrial]:
    """Return a trial whose job was cut short, as its outcome is in the run directory."""
    plan = Plan(kind="launch", roles=(Role(name="worker", count=1),))
    paths, cluster = RunPaths(root), InMemoryCluster()
    trials = SubmittedTrials(cluster, plan, SingleTopology(), paths)
    submitted = submitted_trial(paths, 0, seen=0)
    submitted.rows.set_exception(JobFailed(JobEnd.CANCELLED, "cut short"))
    submitted.over_s = time.monotonic()
    return trials, submitted


def test_outcomes_of_takes_no_exception_from_the_run_directory(root: str) -> None:
    """The outcome of a job that was cut short is read from a file that others may write."""
    trials, submitted = cut_short(root)
    forged = Outcome(status=Status.FAILED, error="E", exception=b"a forged pickle")
    storage.write(RunPaths(root).trial(0).outcome(0), forged.to_json())
    assert trials.outcomes_of(submitted) == [forged.without_exception()]


def test_outcome_that_cannot_be_read_is_read_again_and_then_lost(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, submitted = cut_short(root)
    outcome, errors = Outcome(status=Status.RETURNED), [OSError("the store is busy")]

    def read(url: str) -> bytes:
        if errors:
            raise errors.pop()
        return outcome.to_json().encode()

    monkeypatch.setattr(storage, "read", read)
    monkeypatch.setattr(polling.time, "sleep", lambda _: None)
    assert trials.outcomes_of(submitted) == [outcome]
    monkeypatch.setattr(module, "READ_S", 0.0)
    errors.append(OSError("the store is busy"))
    with pytest.raises(JobFailed, match="could not be read: the store is busy") as caught:
        trials.outcomes_of(submitted)
    assert caught.value.end is JobEnd.LOST
