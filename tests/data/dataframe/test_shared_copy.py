"""The trials of a run over a DataFrame share one copy of its rows on each executor."""

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from tests.helpers.processes import eventually, jvm_of
from tests.helpers.runs import quiet, stopped
from tests.programs.feeding import mapped, note, notes

pytestmark = pytest.mark.slow

ROWS = 2000


def kill_holders(rows: Path) -> list[int]:
    """Kill the processes of the copies in a folder, and return their ids."""
    killed = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and str(rows).encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
    return killed


def reads_all(
    folder: Path,
    names: tuple[str, ...] = ("train", "validation"),
    go_on: Path | None = None,
    kills: int | None = None,
    held: tuple[int, ...] = (),
) -> Any:
    """Return a training function that adds the ids of all rows, and of all again.

    Args:
        folder: where it notes what it has mapped.
        names: the datasets.
        go_on: a file for which all trials wait at their end.
        kills: the trial that kills the process of its copy in the middle of its rows, and lets the
            next one go on.
        held: the trials that wait in the middle of their rows until they find a file of their name.
    """

    def train(number: int) -> int:
        from sparkdl import data

        total = 0
        for name in names:
            rows = data.dataset(name, batch_size_per_worker=64, feature_cols="id", epochs=2)
            for step, batch in enumerate(rows):
                total += sum(int(i) for i in batch)
                if step == 20 and number == kills:
                    assert kill_holders(Path(mapped()[0][0], "sparkdl-rows"))
                    Path(folder, f"held-{number + 1}").touch()
                if step == 20 and number in held:
                    note(folder, "held", number=number)
                    while not Path(folder, f"held-{number}").exists():
                        time.sleep(0.05)
        note(folder, "trial", number=number, files=mapped())
        while go_on and not go_on.exists():
            time.sleep(0.05)
        if number == 7:
            raise ValueError("the last trial")
        return total

    return train


def datasets(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A DataFrame with a byte in a file for each batch that Spark computes, and an RDD."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with (folder / "computed").open("ab") as out:
                out.write(b".")
            yield batch

    frame = spark.range(0, ROWS, 1, 4).selectExpr("id", "repeat('x', 1000) filling")
    rdd = spark.sparkContext.parallelize([(i,) for i in range(10)], 2)
    named = rdd.map(lambda row: {"id": row[0]})
    from pyspark.sql import Row

    return {
        "train": frame.mapInArrow(count, frame.schema),
        "validation": named.map(lambda row: Row(**row)),
    }


def test_each_executor_converts_the_rows_once_and_again_if_the_copy_is_lost(
    three_executors: SparkSession, root: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    three_executors.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    frame = datasets(three_executors, tmp_path)["train"].persist()
    train = reads_all(tmp_path, ("train",), held=(0, 1, 2, 8))
    run = experiment.launch(
        train, {"number": list(range(9))}, data=frame, wait=False, **quiet(root)
    )
    request.addfinalizer(run.cancel)  # Its trials wait: after a failure, no other test had slots.
    frame.unpersist()  # From now on, Spark computes the rows for each job that has them.
    assert eventually(lambda: len(notes(tmp_path, "held")) == 3)
    for number in range(3):
        (tmp_path / f"held-{number}").touch()
    assert eventually(lambda: len(notes(tmp_path, "trial")) == 8, 600)  # Five more trials.
    copies = {tuple(map(tuple, line["files"])) for line in notes(tmp_path, "trial")}
    assert len(copies) == len({folder for copy in copies for folder, _ in copy}) == 3
    # Until each executor is known to have a copy, the jobs of trials have the rows.
    computed = (tmp_path / "computed").stat().st_size
    assert 20 <= computed <= 140, "180 if all nine jobs have the rows"

    assert eventually(lambda: len(notes(tmp_path, "held")) == 4)
    for ((disk, _),) in copies:
        kill_holders(Path(disk, "sparkdl-rows"))
    attempt = Path(run.trials[8].path, "attempts", "0.json")
    os.kill(jvm_of(json.loads(attempt.read_text())["pid"]), signal.SIGKILL)
    (tmp_path / "held-8").touch()
    run.wait()
    assert (tmp_path / "computed").stat().st_size > computed
    total = float(2 * sum(range(ROWS)))
    assert [trial.value for trial in run.trials] == [None if n == 7 else total for n in range(9)]
    assert [trial.attempts for trial in run.trials] == [1] * 8 + [2]


def test_the_copy_of_a_cancelled_run_makes_room_for_the_next_one(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    train, data = reads_all(tmp_path, go_on=go_on), datasets(spark, tmp_path)
    params, options = {"number": [0, 1]}, quiet(root)
    run = experiment.launch(train, params, data=data, wait=False, **options)
    assert eventually(lambda: len(notes(tmp_path, "trial")) == 2, 60)
    [disk] = {folder for line in notes(tmp_path, "trial") for folder, _ in line["files"]}
    rows = Path(disk, "sparkdl-rows")
    [key] = [folder.name for folder in rows.iterdir() if (folder / "socket").exists()]
    run.cancel()
    stopped(run.wait)
    go_on.touch()
    again = experiment.launch(train, params, data=data, **options)
    total = 2.0 * (sum(range(ROWS)) + sum(range(10)))
    assert [trial.value for trial in again.trials] == [total, total]
    assert eventually(lambda: not (rows / key).exists(), 10)
    assert not list(rows.glob("*/none"))


@pytest.mark.thorough
def test_trials_after_the_loss_of_the_copy_get_their_rows(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    frame = datasets(spark, tmp_path)["train"]
    train = reads_all(tmp_path, ("train",), kills=2, held=(3,))
    run = experiment.launch(train, {"number": list(range(5))}, data=frame, **quiet(root))
    # The last trial begins after the kill, and its first job has no rows.
    total = float(2 * sum(range(ROWS)))
    assert [(trial.value, trial.attempts) for trial in run.trials] == [(total, 1)] * 5
    assert (tmp_path / "computed").stat().st_size == 20, "Spark has kept the rows until the end"


@pytest.mark.thorough
def test_a_row_that_fails_ends_no_other_trial_with_fewer_rows(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """Spark then closes the stream of rows, as after the last one."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")

    def fail_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch["id"][-1].as_py() == ROWS - 1:
                with suppress(FileExistsError):
                    (tmp_path / "failed").touch(exist_ok=False)
                    raise ValueError("a row that cannot be computed")
            yield batch

    frame = datasets(spark, tmp_path)["train"]
    data = frame.mapInArrow(fail_once, frame.schema)
    train, params = reads_all(tmp_path, ("train",)), {"number": [0, 1, 2]}
    run = experiment.launch(train, params, data=data, **quiet(root))
    failed = [trial for trial in run.trials if trial.state != "COMPLETE"]
    # Spark 3.5 computes the rows to keep in one job, whose error is that of both running trials.
    assert 1 <= len(failed) <= (1 if hasattr(frame, "toArrow") else 2)
    assert all("a row that cannot be computed" in str(trial.error) for trial in failed)
    total = float(2 * sum(range(ROWS)))
    complete = [trial for trial in run.trials if trial not in failed]
    assert [trial.value for trial in complete] == [total] * len(complete)
