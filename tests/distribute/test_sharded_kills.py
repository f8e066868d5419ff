"""A training with a sharded optimizer is killed, and goes on with another number of ranks."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import experiment
from sparkdl.errors import TrainingFailedError
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("four_executors")]

# All rows are one batch, so that a step does not depend on which ranks have which rows.
NUM_ROWS = 12
NUM_STEPS = 30


def write(folder: Path) -> tuple[Any, Any]:
    """Write rows, and return their features and labels."""
    chance = np.random.default_rng(3)
    x = chance.standard_normal((NUM_ROWS, 5)).astype("f4")
    y = chance.standard_normal(NUM_ROWS).astype("f4")
    for part in range(6):
        some = slice(2 * part, 2 * part + 2)
        table = pa.table({"x": x[some].tolist(), "y": y[some]})
        table = table.cast(pa.schema({"x": pa.list_(pa.float32()), "y": pa.float32()}))
        pq.write_table(table, folder / f"{part}.parquet")
    return x, y


def make_model(optimizer: Any) -> Any:
    import keras

    keras.utils.set_random_seed(11)
    layers = [keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model.compile(optimizer, "mse")
    return model


def weights_of(model: Any) -> list[float]:
    return [float(value) for weight in model.get_weights() for value in weight.ravel()]


def train(folder: Path, killed_at: int) -> list[float]:
    import keras

    from sparkdl import context, data, distribute
    from sparkdl.keras import Checkpoint

    rows = data.parquet(
        folder / "rows", global_batch_size=NUM_ROWS, feature_cols="x", label_cols="y"
    )
    model = make_model(distribute.optimizer(keras.optimizers.Adam(0.02), shard=True))

    class Kill(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            (folder / f"began-{context.world_size}-{epoch}").touch()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == killed_at and context.rank == context.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)

    checkpoint = Checkpoint(every_steps=1, data=rows)
    model.fit(rows, epochs=NUM_STEPS, verbose=0, callbacks=[checkpoint, Kill()])
    return weights_of(model)


@pytest.mark.thorough
def test_three_ranks_are_killed_and_two_go_on_to_the_weights_of_one_process(
    root: str, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    x, y = write(tmp_path / "rows")

    def start(num_workers: int, killed_at: int, **options: Any) -> Any:
        return experiment.allreduce(
            lambda: train(tmp_path, killed_at),
            num_workers=num_workers,
            run_id="sharded",
            **quiet(root, **options),
        )

    with pytest.raises(TrainingFailedError, match="SIGKILL"):
        start(3, killed_at=9)
    resume = {"if_exists": "resume", "retry": "failed"}
    with pytest.raises(TrainingFailedError, match="SIGKILL"):
        start(2, killed_at=19, **resume)
    result = start(4, killed_at=-1, **resume).result
    began = [path.name.split("-") for path in tmp_path.glob("began-*")]
    first = {n: min(int(epoch) for _, size, epoch in began if size == n) for n in ("3", "2", "4")}
    assert first == {"3": 0, "2": 9, "4": 19} or first == {"3": 0, "2": 10, "4": 20}, first

    import keras

    alone = make_model(keras.optimizers.Adam(0.02))
    start_weights = weights_of(alone)
    alone.fit(x, y, batch_size=NUM_ROWS, epochs=NUM_STEPS, shuffle=False, verbose=0)
    assert result == pytest.approx(weights_of(alone), rel=1e-4, abs=1e-5)
    assert result != pytest.approx(start_weights, abs=1e-2)
