"""The contract of `sparkdl.cluster.base.Cluster`, over every implementation."""

import functools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkdl.cluster.base import Cluster
from sparkdl.cluster.plan import Plan, Resources, Role
from sparkdl.cluster.spark import SparkCluster
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.runner.pipeline.execute import execute
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, returned
from tests.helpers.loops import events, journal_states, request_of
from tests.helpers.processes import eventually

NUM_SLOTS = 2


def train_in_memory(attempt: Attempt) -> Outcome:
    """Return what `tests.helpers.loops.train` returns."""
    return returned(attempt.task.trial.params["x"])


@pytest.fixture(params=["in memory", pytest.param("spark", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each implementation with two slots."""
    if request.param == "in memory":
        return InMemoryCluster(train_in_memory, NUM_SLOTS)
    return SparkCluster(request.getfixturevalue("spark"))


def numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the number of the task."""
    for batch in batches:
        ids = batch.column(0).to_pylist()
        yield pa.RecordBatch.from_pydict({"number": pa.array(ids, "int64")})


def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise ValueError("no rows today")
    yield from ()


def waiting(folder: str, name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Show that the task runs, and wait until the test lets it end."""
    for _ in batches:
        Path(folder, f"{name}.started").touch()
        while not Path(folder, f"{name}.go").exists():
            time.sleep(0.01)
        yield pa.RecordBatch.from_pydict({"number": pa.array([0], "int64")})


def submit(cluster: Cluster, task: Callable[..., Any], *tags: str, num_tasks: int = 1) -> list[Any]:
    return cluster.submit(
        task,
        "number long",
        num_tasks=num_tasks,
        resources=Resources(),
        description="contract",
        tags=tags or ("contract",),
    )


def test_submit_returns_the_rows_of_all_tasks(cluster: Cluster) -> None:
    rows = submit(cluster, numbers, num_tasks=NUM_SLOTS)
    assert sorted(row["number"] for row in rows) == list(range(NUM_SLOTS))


def test_submit_raises_the_error_of_a_task(cluster: Cluster) -> None:
    with pytest.raises(JobFailed, match="ValueError: no rows today") as failed:
        submit(cluster, failing)
    assert failed.value.end is JobEnd.ERROR


def test_cancel_ends_the_jobs_with_the_tag_only(cluster: Cluster, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        jobs: dict[str, Future[list[Any]]] = {}
        for name in ("a", "b"):
            task = functools.partial(waiting, str(tmp_path), name)
            jobs[name] = pool.submit(submit, cluster, task, "run", f"run:{name}")
        try:
            for name in jobs:
                assert eventually(Path(tmp_path, f"{name}.started").exists)
            cluster.cancel("another run")
            cluster.cancel("run:a")
            with pytest.raises(JobFailed) as failed:
                jobs["a"].result(120)
            assert failed.value.end is JobEnd.CANCELLED
            assert not jobs["b"].done()
        finally:
            for name in jobs:
                Path(tmp_path, f"{name}.go").touch()
        assert [row["number"] for row in jobs["b"].result(120)] == [0]


def test_jobs_without_a_slot_wait_and_can_be_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        jobs = []
        for name in ("a", "b", "c"):
            task = functools.partial(waiting, str(tmp_path), name)
            jobs.append(pool.submit(submit, cluster, task, f"run:{name}"))
            if name != "c":
                assert eventually(Path(tmp_path, f"{name}.started").exists)

        def cancel() -> bool:
            cluster.cancel("run:c")  # Spark knows a job only a moment after its submission.
            return jobs[2].done()

        try:
            assert eventually(cancel)
            with pytest.raises(JobFailed) as failed:
                jobs[2].result()
            assert failed.value.end is JobEnd.CANCELLED
            assert not Path(tmp_path, "c.started").exists()
        finally:
            for name in ("a", "b", "c"):
                Path(tmp_path, f"{name}.go").touch()


def test_slots_and_configuration(cluster: Cluster) -> None:
    assert cluster.slots(Resources()).count == NUM_SLOTS
    assert cluster.slots(Resources(), override=7).count == 7
    assert cluster.slots(Resources()).reason
    assert cluster.slots_now(Resources()) == NUM_SLOTS
    assert cluster.enforces(Resources()) is True
    assert cluster.conf("spark.no.such.key") is None
    assert cluster.root()
    assert cluster.master and cluster.application and cluster.version
    cluster.check(Plan(kind="launch", roles=(Role(name="worker", count=1),)))
    cluster.wait_for_executors(1)


def test_run_of_three_trials_has_the_same_journal(cluster: Cluster, root: str) -> None:
    run = execute(request_of(3, root=root), cluster)
    assert [trial.value for trial in run.trials] == [0.0, 1.0, 2.0]
    assert run.best.number == 2
    for number in range(3):
        assert journal_states(run, number) == ["RUNNING", "COMPLETE"]
    kinds = [event["event"] for event in events(run) if event["event"] != "trial"]
    assert kinds == ["start", "trials", "end"]
