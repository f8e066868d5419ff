"""Failures while a DataFrame is sent end the run soon, name their cause and leave nothing."""

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkdl import experiment
from sparkdl.errors import AllTrialsFailedError, TrainingFailedError
from tests.helpers.processes import eventually, is_alive, jvm_of, processes_of
from tests.helpers.runs import quiet
from tests.programs.feeding import ids, note, notes, skewed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def small_batches(three_executors: SparkSession) -> None:
    three_executors.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")


def wide(spark: SparkSession, rows: int) -> DataFrame:
    """Rows `id, filling` of 4 KiB."""
    return spark.range(0, rows, 1, 2).selectExpr("id", "repeat('0123456789abcdef', 256) filling")


def spooled(folder: Path) -> list[str]:
    """Files without a name in a folder that any process has mapped or open."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                lines = (entry / "maps").read_text().splitlines()
                found += [f"{entry.name} {line}" for line in lines if str(folder) in line]
                links = [os.readlink(one) for one in (entry / "fd").iterdir()]
                found += [f"{entry.name} {link}" for link in links if str(folder) in link]
        except OSError:
            continue
    return found


def dies(folder: Path, how: str) -> Any:
    def train() -> None:
        from sparkdl import context, data

        Path(folder, f"pid-{context.rank}").write_text(str(os.getpid()))
        for number, _ in enumerate(data.dataset(batch_size_per_worker=10, epochs=1000)):
            if number == 3 and context.rank == context.world_size - 1:
                assert spooled(folder / "disk"), "its rows are elsewhere"
                Path(folder, "gone").write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL) if how == "SIGKILL" else os._exit(1)

    return train


@pytest.mark.parametrize(
    ("verb", "how"),
    [
        ("launch", "SIGKILL"),
        pytest.param("launch", "exit code 1", marks=pytest.mark.thorough),
        pytest.param("allreduce", "SIGKILL", marks=pytest.mark.thorough),
        ("allreduce", "exit code 1"),
    ],
)
def test_a_consumer_that_dies_in_mid_stream(
    three_executors: SparkSession,
    root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    how: str,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setitem(three_executors.sparkContext.environment, "LOCAL_DIRS", str(disk))
    train, options = dies(tmp_path, how), quiet(root)
    rows = wide(three_executors, 50_000)
    if verb == "launch":
        with pytest.raises(AllTrialsFailedError, match=how):
            experiment.launch(train, data=rows, **options)
    else:
        with pytest.raises(TrainingFailedError, match=how) as caught:
            experiment.allreduce(train, num_workers=2, data=rows, **options)
        assert "worker 1 (rank 1)" in str(caught.value)
    assert time.time() - float((tmp_path / "gone").read_text()) < 15
    pids = [int(path.read_text()) for path in tmp_path.glob("pid-*")]
    assert len(pids) == (1 if verb == "launch" else 2)
    assert eventually(lambda: not any(is_alive(pid) for pid in pids), 10)
    run = experiment.load(str(experiment.history(root)["path"][0]))
    assert run.trials[0].attempts == 1
    assert eventually(lambda: not processes_of(run.id), 10)
    assert eventually(lambda: not spooled(disk), 10)
    assert list(disk.iterdir()) == []


@pytest.mark.acceptance("A6")
def test_a_slow_consumer_is_not_declared_dead(
    three_executors: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first row, between rows, and after the last, each longer than every limit."""

    def pausing(pause_s: float) -> Any:
        def train() -> int:
            from sparkdl import context, data
            from sparkdl.data.dataframe import balancing

            balancing.REMIND_S = 1.0
            time.sleep(pause_s if context.rank == 1 else 0.0)
            total = 0
            for batch in data.dataset(batch_size_per_worker=50, feature_cols="id"):
                time.sleep(0.0 if total else pause_s)
                total += len(batch)
            time.sleep(pause_s)
            return total

        return train

    rows, options = three_executors.range(2000), quiet(root, trial_timeout_s=90)
    experiment.allreduce(pausing(0.0), num_workers=2, data=rows, **options)  # Imports it all.
    monkeypatch.setenv("SPARKDL_START_TIMEOUT_S", "6")
    run = experiment.allreduce(pausing(6.5), num_workers=2, data=rows, **options)
    assert (run.state, run.result, run.trials[0].attempts) == ("COMPLETE", 1000, 1)
    log = Path(run.trials[0].path, "log-worker-0.txt").read_text()
    assert "waiting for ranks [1] to call data.dataset; every rank must" in log


def test_a_rank_that_does_not_read_what_others_do(
    three_executors: SparkSession, root: str, tmp_path: Path
) -> None:
    def train() -> int:
        from sparkdl import context, data

        if context.rank == 1:
            return 0
        return len(ids(data.dataset(batch_size_per_worker=50, feature_cols="id")))

    with pytest.raises(
        TrainingFailedError, match=r"ranks \[1\] returned before .*'train'"
    ) as caught:
        experiment.allreduce(
            train,
            num_workers=2,
            data=three_executors.range(2000),
            **quiet(root, trial_timeout_s=60),
        )
    assert "worker 0 (rank 0)" in str(caught.value)


def test_ranks_that_all_stop_early_end_well(
    three_executors: SparkSession, root: str, tmp_path: Path
) -> None:
    """One is done before the other has begun; the rows of neither were all there."""

    def train() -> int:
        from sparkdl import context, data

        total = 0
        rows = data.dataset(batch_size_per_worker=10, feature_cols="id")
        for number, batch in enumerate(rows):
            total += len(batch)
            if number == 5:
                break
        if context.rank == 0:
            time.sleep(2.0)
        return total

    run = experiment.allreduce(
        train, num_workers=3, data=wide(three_executors, 20_000), **quiet(root, trial_timeout_s=60)
    )
    assert (run.state, run.result) == ("COMPLETE", 60)


def test_an_exception_of_the_persons_with_rows_unread(
    three_executors: SparkSession, root: str
) -> None:
    def slow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            yield batch
            if number > 10:
                time.sleep(3.0)

    def train() -> None:
        from sparkdl import data

        for _ in data.dataset(batch_size_per_worker=10):
            raise LookupError("the user's own")

    rows = wide(three_executors, 3000)
    began = time.monotonic()
    with pytest.raises(AllTrialsFailedError, match="the user's own") as caught:
        experiment.launch(train, data=rows.mapInArrow(slow, rows.schema), **quiet(root))
    # Its type is lost where Spark does not bring it: nothing is unpickled from the run directory.
    assert caught.value.__cause__ is not None
    assert time.monotonic() - began < 30
    run = experiment.load(str(experiment.history(root)["path"][0]))
    assert run.trials[0].attempts == 1


@pytest.mark.parametrize("verb", ["launch", "allreduce"])
def test_an_error_of_the_persons_dataframe(
    three_executors: SparkSession, root: str, tmp_path: Path, verb: str
) -> None:
    def train() -> int:
        from sparkdl import data

        total = sum(len(batch) for batch in ids(data.dataset(batch_size_per_worker=50)))
        note(tmp_path, "returned", rows=total)
        return total

    def breaks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 60:
                raise ValueError("the user's own sieve broke at batch 60")
            yield batch

    rows = wide(three_executors, 20_000)
    rows = rows.mapInArrow(breaks, rows.schema)
    says, options = "the user's own sieve broke at batch 60", quiet(root, trial_timeout_s=60)
    with pytest.raises((AllTrialsFailedError, TrainingFailedError), match=says):
        if verb == "launch":
            experiment.launch(train, data=rows, **options)
        else:
            experiment.allreduce(train, num_workers=2, data=rows, **options)
    # In launch Spark does not tell a task that its rows are cut off, before it ends the task.
    assert verb == "launch" or not notes(tmp_path, "returned"), "it trained on a part"
    run = experiment.load(str(experiment.history(root)["path"][0]))
    assert run.state == "FAILED"
    assert says in Path(run.trials[0].path, "error.txt").read_text()
    assert eventually(lambda: not processes_of(run.id), 10)


@pytest.mark.parametrize("verb", ["launch", "allreduce"])
def test_a_lost_executor_in_mid_stream(
    three_executors: SparkSession, root: str, tmp_path: Path, verb: str
) -> None:
    """The attempt that completes has every row once."""

    def train() -> int:
        from sparkdl import context, data

        found = []
        for number, batch in enumerate(data.dataset(batch_size_per_worker=20, feature_cols="id")):
            found.append([int(i) for i in batch])
            if number == 3 and context.attempt == 0:
                note(tmp_path, "reached")
                time.sleep(300)
        note(tmp_path, "ids", ids=found, attempt=context.attempt)
        return context.attempt

    options = quiet(root, wait=False)
    if verb == "launch":
        run = experiment.launch(train, data=skewed(three_executors), **options)
    else:
        run = experiment.allreduce(train, num_workers=2, data=skewed(three_executors), **options)
    ranks = range(1 if verb == "launch" else 2)
    try:
        assert eventually(lambda: all(notes(tmp_path, "reached", rank) for rank in ranks), 120)
        first = json.loads(Path(run.trials[0].path, "attempts/0.json").read_text())
        os.kill(jvm_of(first["pid"]), signal.SIGKILL)
        assert eventually(lambda: run.state != "RUNNING", 120)
    finally:
        run.cancel()
        run.wait()
    assert run.state == "COMPLETE", run
    said = [notes(tmp_path, "ids", rank) for rank in ranks]
    # How often Spark tries is its own: a retry may meet shuffle files that are lost too.
    assert all(len(rank) == 1 and rank[0]["attempt"] > 0 for rank in said)
    used = [i for rank in said for batch in rank[0]["ids"] for i in batch]
    assert set(used) == set(range(1001))
    assert len(used) == (1001 if verb == "launch" else 1002)
    lines = Path(run.trials[0].path, "data.jsonl").read_text().splitlines()
    assert [json.loads(line)["rows"] for line in lines] == [1001], "of the last attempt only"
