"""Readers in real gangs: which process reads which rows, and what is refused."""

import gzip
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.errors import TrainingFailedError
from sparkdl.tfos import TFCluster, TFParallel
from tests.helpers.processes import eventually
from tests.helpers.runs import quiet

pytestmark = pytest.mark.slow

NUM_ROWS = 1600


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """16 files of 100 rows."""
    folder = tmp_path / "table"
    folder.mkdir()
    for number in range(16):
        ids = pa.table({"id": range(100 * number, 100 * number + 100)})
        pq.write_table(ids, folder / f"{number:02}.parquet")
    return folder


def read_twice(args: Any, ctx: Any) -> None:
    """Write the rows of two epochs of this node to a file."""
    from sparkdl import data

    dataset = data.parquet(args["table"], batch_size_per_worker=16, shuffle=True)
    epochs = [[int(i) for batch in dataset for i in batch] for _ in range(2)]
    Path(args["seen"], str(ctx.worker_num)).write_text(json.dumps(epochs))


def seen_in(folder: Path) -> list[list[list[int]]]:
    """The epochs of each process."""
    return [json.loads(file.read_text()) for file in sorted(folder.iterdir())]


@pytest.mark.thorough
def test_nodes_of_tensorflowonspark_read_every_row_once(
    standalone_spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    sc, seen = standalone_spark.sparkContext, tmp_path / "seen"
    seen.mkdir()
    args = {"table": str(table), "seen": str(seen)}
    mode = TFCluster.InputMode.TENSORFLOW
    TFCluster.run(sc, read_twice, args, 2, 0, input_mode=mode).shutdown()
    for epoch in range(2):
        rows = [of_node[epoch] for of_node in seen_in(seen)]
        assert [len(ids) for ids in rows] == [NUM_ROWS // 2] * 2
        assert Counter(rows[0] + rows[1]) == Counter(range(NUM_ROWS))
    # Runs that know nothing of each other: each reads everything.
    TFParallel.run(sc, read_twice, args, 2, use_barrier=True)
    assert [sorted(epoch) for of_run in seen_in(seen) for epoch in of_run] == (
        [[*range(NUM_ROWS)]] * 4
    )


def test_ranks_that_see_other_files_divide_the_same_ones(
    spark: SparkSession, root: str, table: Path
) -> None:
    """An hourly job writes into the folder, and into a Delta table, while the ranks start."""
    folder, versions = str(table), str(table.with_name("versions"))
    write_deltalake(versions, pa.table({"id": range(NUM_ROWS)}))

    def train() -> Any:
        from sparkdl import context, data

        def wait_for_pieces(call: int) -> None:
            """Rank 0 announces a call first; its message has pieces once it has listed them."""
            while True:
                for message in Path(context.url, "ranks/0").glob(f"0.pieces-{call}"):
                    if json.loads(gzip.decompress(message.read_bytes()))["pieces"] is not None:
                        return
                time.sleep(0.02)

        if context.rank == 1:
            wait_for_pieces(0)
            rows = pa.table({"id": range(5000, 5100)})
            pq.write_table(rows, f"{folder}/-late.parquet")
        files = data.parquet(folder, global_batch_size=8, shuffle=True)
        if context.rank == 1:
            wait_for_pieces(1)
            write_deltalake(versions, pa.table({"id": range(5000, 5100)}), mode="append")
        newest = data.delta(versions, global_batch_size=8)
        ids = [[int(i) for batch in rows for i in batch] for rows in (files, newest)]
        Path(folder).with_name(f"ids-{context.rank}").write_text(json.dumps(ids))

    experiment.allreduce(train, num_workers=2, **quiet(root))
    first, second = (json.loads(table.with_name(f"ids-{rank}").read_text()) for rank in range(2))
    for rows, others in zip(first, second, strict=True):
        assert Counter(rows + others) == Counter(range(NUM_ROWS))
        assert len(rows) == len(others)


def test_ranks_that_call_different_readers_do_not_wait_for_each_other(
    spark: SparkSession, root: str, table: Path
) -> None:
    folder = str(table)

    def train() -> None:
        from sparkdl import context, data

        paths = [folder, f"{folder}/0*"]
        for path in paths if context.rank == 0 else reversed(paths):
            data.parquet(path, global_batch_size=8)

    with pytest.raises(TrainingFailedError, match=r"reader call 0 of this rank is data\.parquet"):
        experiment.allreduce(train, num_workers=2, **quiet(root))


def test_a_rank_that_takes_the_place_of_a_lost_one_divides_the_same_files(
    spark: SparkSession, root: str, table: Path
) -> None:
    folder = str(table)

    def train() -> None:
        from sparkdl import context, data

        begun, done = (
            Path(folder).with_name(f"{name}-{context.rank}") for name in ("begun", "ids")
        )
        dataset = data.parquet(folder, global_batch_size=8, shuffle=True)
        if context.rank == 1 and not begun.exists():
            pq.write_table(pa.table({"id": range(5000, 5100)}), f"{folder}/-late.parquet")
            begun.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        done.write_text(json.dumps([int(i) for batch in dataset for i in batch]))
        eventually(lambda: all(Path(folder).with_name(f"ids-{r}").exists() for r in (0, 1)), 60)

    experiment.allreduce(train, num_workers=2, elastic=True, **quiet(root))
    rows = [json.loads(table.with_name(f"ids-{rank}").read_text()) for rank in range(2)]
    assert Counter(rows[0] + rows[1]) == Counter(range(NUM_ROWS))


def test_the_coordinator_of_parameter_servers_reads_every_row(
    three_executors: SparkSession, root: str, table: Path
) -> None:
    folder = str(table)

    def train() -> Any:
        import tensorflow as tf

        from sparkdl import data, distribute

        coordinator = tf.distribute.coordinator.ClusterCoordinator(distribute.strategy())

        def dataset() -> Any:
            return data.parquet(folder, global_batch_size=50, shuffle=True)

        refusals = []
        for per_worker in (dataset, dataset()):
            try:
                coordinator.create_per_worker_dataset(per_worker)
            except Exception as exc:  # TensorFlow wraps what is raised while it traces a function.
                refusals.append("cannot be read by its workers" in str(exc))
        allowed = coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(3))
        assert refusals == [True, True] and allowed is not None
        return {"rows": len({int(i) for batch in dataset() for i in batch})}

    run = experiment.parameter_server(train, num_workers=1, num_ps=1, **quiet(root))
    assert run.result == {"rows": NUM_ROWS}
