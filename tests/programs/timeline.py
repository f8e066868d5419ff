"""Programs for ranks with a timeline. Each returns the values that its test checks, as JSON."""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

STEPS, WIDTH, LATE_S = 20, 1500, 0.2  # Each layer has 9 MB of gradients, which fill a bucket.


def fits(folder: Path) -> Any:
    """Return the seconds of each step of `fit`; rank 1 begins each step late."""
    import keras
    import numpy as np

    from sparkdl import context, distribute

    ends: list[float] = []

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if context.rank == 1:
                time.sleep(LATE_S)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            ends.append(time.perf_counter())

    dense = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.layers.Input((WIDTH,)), *dense])
    model.compile(distribute.optimizer("sgd"), "mse")
    x = np.ones((STEPS * 8, WIDTH), "float32")
    model.fit(x, x, batch_size=8, verbose=0, callbacks=[Watch()])
    return [after - before for before, after in pairwise(ends)]


def sparse(folder: Path) -> Any:
    """Train a model with only sparse gradients in a custom loop."""
    import tensorflow as tf

    from sparkdl import distribute

    table = tf.Variable(tf.zeros((50, 4)))
    for _ in range(5):
        with distribute.gradient_tape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(tf.gather(table, [1, 2]))
        tape.gradient(loss, [table])


def by_hand(folder: Path) -> Any:
    """Call collectives without gradients."""
    import numpy as np

    from sparkdl import distribute

    for _ in range(20):
        distribute.allreduce(np.ones(100_000))
