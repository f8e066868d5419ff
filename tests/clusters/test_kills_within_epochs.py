"""A training that is killed six times at random steps uses every row of every epoch once."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.errors import TrainingFailedError
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("four_executors")]

NUM_ROWS = 600
EPOCHS = 4
NUM_KILLS = 6
OPTIONS: dict[str, Any] = {
    "global_batch_size": 12,
    "feature_cols": "id",
    "label_cols": "y",
    "shuffle": 64,
}


def train(folder: Path, read: Callable[[], Any]) -> list[float]:
    import keras
    import tensorflow as tf

    from sparkdl import context, distribute
    from sparkdl.keras import Checkpoint

    strategy = distribute.strategy()
    rows = read()
    checkpoint = Checkpoint(every_steps=2, data=rows)

    def summed(y: Any, uses: Any) -> Any:
        return -tf.cast(tf.size(uses), "float32") * tf.reduce_mean(uses)

    # The weight of a row is the number of its uses: each adds a gradient of one.
    with strategy.scope():
        ids = keras.layers.Embedding(NUM_ROWS, 1, embeddings_initializer="zeros")
        model = keras.Sequential([keras.layers.Input((), dtype="int32"), ids])
        model.compile(keras.optimizers.SGD(1.0), summed)

    kills = len(list(folder.glob("kill-*")))
    chance = random.Random(f"kill {kills}")
    victim, last_step = chance.randrange(context.world_size), chance.randint(3, 25)

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if kills < NUM_KILLS and context.rank == victim and self.steps == last_step:
                (folder / f"kill-{kills}-of-{context.world_size}").touch()
                os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            uses = sorted({float(w) for w in self.model.get_weights()[0][:, 0]})
            (folder / f"epoch-{epoch}-rank-{context.rank}").write_text(f"{uses}")

    model.fit(rows, epochs=EPOCHS, verbose=0, callbacks=[checkpoint, Watch()])
    return [float(w) for w in model.get_weights()[0][:, 0]]


def check_every_row_of_every_epoch_is_used_once(
    root: str, folder: Path, read: Callable[[], Any], **data: Any
) -> None:
    """Start with three ranks, kill one three times, and do the same with two ranks.

    Args:
        root: the folder of the run.
        folder: the folder of what the test writes.
        read: returns the rows of a rank.
        **data: the data of the run, if any.
    """

    def start(num_workers: int, max_restarts: int, **options: Any) -> Any:
        return experiment.allreduce(
            lambda: train(folder, read),
            num_workers=num_workers,
            max_restarts=max_restarts,
            run_id="killed",
            **quiet(root, **options, **data),
        )

    with pytest.raises(TrainingFailedError, match="SIGKILL"):
        start(3, max_restarts=2)
    lists = Path(root, "killed/trials/0/rows")
    # Each start has another list: the rows came in another order.
    assert len(list(lists.glob("*.json"))) == (3 if data else 0)
    run = start(2, max_restarts=3, if_exists="resume", retry="failed")
    assert run.result == [float(EPOCHS)] * NUM_ROWS
    assert not lists.exists()
    sizes = [path.name.split("-of-")[1] for path in folder.glob("kill-*")]
    assert sorted(sizes) == ["2"] * 3 + ["3"] * 3
    for epoch in range(EPOCHS):
        texts = {path.read_text() for path in folder.glob(f"epoch-{epoch}-*")}
        assert texts == {f"[{epoch + 1}.0]"}, epoch


def test_every_row_of_files_is_used_once_by_three_ranks_and_then_two(
    root: str, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    for part in range(6):
        ids = range(part * 100, part * 100 + 100)
        table = pa.table({"id": pa.array(ids, pa.int32()), "y": [0.0] * 100})
        pq.write_table(table, tmp_path / f"rows/{part}.parquet", row_group_size=30)

    def read() -> Any:
        from sparkdl import data

        return data.parquet(tmp_path / "rows", **OPTIONS)

    check_every_row_of_every_epoch_is_used_once(root, tmp_path, read)


def test_every_row_of_a_dataframe_is_used_once_by_three_ranks_and_then_two(
    four_executors: SparkSession, root: str, tmp_path: Path
) -> None:
    """Spark delivers the rows of each start in another order, to other ranks."""

    def in_any_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(batches)
        order = list(range(len(rows)))
        random.SystemRandom().shuffle(order)
        yield from rows.take(order).to_batches()

    ordered = four_executors.range(NUM_ROWS).selectExpr("cast(id AS int) id", "0.0D y")
    df = ordered.mapInArrow(in_any_order, ordered.schema)

    def read() -> Any:
        from sparkdl import data

        return data.dataset(**OPTIONS)

    check_every_row_of_every_epoch_is_used_once(root, tmp_path, read, data=df)
