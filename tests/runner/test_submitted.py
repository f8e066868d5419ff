"""The trials that were handed to a cluster, and the files that their tasks leave."""

import time
from concurrent.futures import Future

from sparkdl import storage
from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.cluster.topology import SingleTopology, SparkJob
from sparkdl.runner.submitted import SubmittedTrial, SubmittedTrials
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.trial import Trial
from tests.helpers.in_memory_cluster import InMemoryCluster


def test_outcomes_of_takes_no_exception_from_the_run_directory(root: str) -> None:
    """The outcome of a job that was cut short is read from a file that others may write."""
    plan = Plan(kind="launch", roles=(Role(name="worker", count=1),))
    paths, cluster = RunPaths(root), InMemoryCluster()
    trials = SubmittedTrials(cluster, plan, SingleTopology(), paths)
    rows: Future[list[object]] = Future()
    rows.set_exception(JobFailed(JobEnd.CANCELLED, "cut short"))
    submitted = SubmittedTrial(
        trial=Trial(0, {}, paths.trial(0).folder),
        job=SparkJob(cluster.submit),
        rows=rows,
        submitted_s=time.monotonic(),
        first=0,
        seen=0,
        over_s=time.monotonic(),
    )
    forged = Outcome(status=Status.FAILED, error="E", exception=b"a forged pickle")
    storage.write(paths.trial(0).outcome(0), forged.to_json())
    assert trials.outcomes_of(submitted) == [forged.without_exception()]
