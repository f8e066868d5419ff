"""A training that is killed ten times at random steps uses every row of every epoch once."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import experiment
from sparkdl.errors import TrainingFailedError
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("four_executors")]

NUM_ROWS = 600
EPOCHS = 4
NUM_KILLS = 10


def train(folder: Path) -> list[float]:
    import keras
    import tensorflow as tf

    from sparkdl import context, data, distribute
    from sparkdl.keras import Checkpoint

    strategy = distribute.strategy()
    options = {"feature_cols": "id", "label_cols": "y", "shuffle": 64}
    rows = data.parquet(folder / "rows", global_batch_size=12, **options)
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


def test_every_row_of_every_epoch_is_used_once_by_three_ranks_and_then_two(
    root: str, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    for part in range(6):
        ids = range(part * 100, part * 100 + 100)
        table = pa.table({"id": pa.array(ids, pa.int32()), "y": [0.0] * 100})
        pq.write_table(table, tmp_path / f"rows/{part}.parquet", row_group_size=30)

    def start(num_workers: int, max_restarts: int, **options: Any) -> Any:
        return experiment.allreduce(
            lambda: train(tmp_path),
            num_workers=num_workers,
            max_restarts=max_restarts,
            run_id="killed",
            **quiet(root, **options),
        )

    with pytest.raises(TrainingFailedError, match="SIGKILL"):
        start(3, max_restarts=4)
    run = start(2, max_restarts=5, if_exists="resume", retry="failed")
    assert run.result == [float(EPOCHS)] * NUM_ROWS
    sizes = [path.name.split("-of-")[1] for path in tmp_path.glob("kill-*")]
    assert sorted(sizes) == ["2"] * 5 + ["3"] * 5
    for epoch in range(EPOCHS):
        texts = {path.read_text() for path in tmp_path.glob(f"epoch-{epoch}-*")}
        assert texts == {f"[{epoch + 1}.0]"}, epoch
