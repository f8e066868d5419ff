"""The error of a gang whose executor was lost names the rank and its host."""

from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.spark_errors import JobFailed, job_failed
from sparkdl.cluster.topology import GangTopology
from sparkdl.files import storage
from sparkdl.files.jsonl import to_json
from sparkdl.files.layout import RunPaths
from sparkdl.runner.loop.submitted import SubmittedTrial, SubmittedTrials
from sparkdl.runs.trial import Trial
from tests.helpers.in_memory_cluster import InMemoryCluster

LOST = (
    "Could not recover from a failed barrier ResultStage. Most recent failure reason: Stage failed "
    "because barrier task ResultTask(7, 1) finished unsuccessfully.\nExecutorLostFailure (executor "
    "1 exited unrelated to the running tasks) Reason: worker lost: Not receiving heartbeat"
)


def error_of(folder: Path, places: Any) -> str:
    paths = RunPaths(str(folder))
    if places:
        storage.write(paths.trial(0).attempt(0), to_json(places))
    plan = Plan(kind="allreduce", roles=(Role(name="worker", count=2),), is_gang=True)
    trials = SubmittedTrials(InMemoryCluster(), plan, GangTopology(), paths)
    rows: Any = trials._threads.submit(lambda: (_ for _ in ()).throw(job_failed(OSError(LOST))))
    trial = Trial(0, {}, str(folder))
    lost = SubmittedTrial(
        trial=trial, job=None, rows=rows, submitted_s=0.0, first=0, newest_attempt=0
    )  # type: ignore[arg-type]
    with pytest.raises(JobFailed) as caught:
        trials.outcomes_of(lost)
    trials.close()
    return str(caught.value)


def test_lost_rank_is_named_with_its_host(tmp_path: Path) -> None:
    places = {"ranks": {"worker 0": {"host": "a"}, "worker 1": {"host": "b"}}}
    assert error_of(tmp_path, places) == "the executor of worker 1 on host b was lost"


def test_gang_lost_before_it_met_names_no_host(tmp_path: Path) -> None:
    assert error_of(tmp_path, None) == "its executor was lost"
