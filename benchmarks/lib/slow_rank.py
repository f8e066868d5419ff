"""Functions of `benchmarks/straggler.py` that run on a driver among hosts."""

import socket
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sparkdl import experiment

# Seconds of work of a rank in a step.
WORK_S = 0.1


def _train(folder: str) -> None:
    """Train until there is a file `go`; a file `slow@<host>` doubles the work on a host.

    Each rank writes the times of its steps to `<rank>@<host>`.
    """
    import keras
    import tensorflow as tf

    from sparkdl import context, distribute

    host = socket.gethostname()
    is_slow, times = Path(folder, f"slow@{host}"), Path(folder, f"{context.rank}@{host}")

    class Work(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            with times.open("a") as file:
                file.write(f"{time.time()}\n")
            until = time.thread_time() + WORK_S
            begun = time.perf_counter()
            while time.thread_time() < until:
                pass
            if is_slow.exists():
                time.sleep(time.perf_counter() - begun)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if any(distribute.allgather_object(Path(folder, "go").exists())):
                self.model.stop_training = True

    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(8)])
    model.compile(distribute.optimizer("sgd"), "mse")
    rows = tf.data.Dataset.from_tensor_slices((tf.ones((160, 8)), tf.ones((160, 8)))).batch(8)
    model.fit(rows, epochs=1_000_000, verbose=0, callbacks=[Work()])


def train(spark: SparkSession, folder: str, moves: bool) -> dict[str, Any]:
    """Train with two ranks; return what was said of slow ranks."""
    run = experiment.allreduce(
        lambda: _train(folder), num_workers=2, elastic=True, move_slow_ranks=moves, progress=False
    )
    return {"state": str(run.state), "slow_ranks": run.slow_ranks}
