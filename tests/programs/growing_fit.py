"""A `fit` whose ranks come and leave between epochs, see `test_growing_fit`."""

import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROWS, BATCH, RATE, EPOCHS = 12, 2, 0.2, 6
# After these epochs, the first rank waits until the test has called the other one, or sent it away.
STOPS = (1, 3)


def keras(folder: Path) -> Any:
    """Return what a `fit` of Keras 3 has done."""
    return _fits(folder, "keras")


def tf_keras(folder: Path) -> Any:
    """Return what a `fit` of tf_keras has done."""
    return _fits(folder, "tf_keras")


def _fits(folder: Path, name: str) -> Any:
    import numpy as np
    import tensorflow as tf

    from sparkdl import context, distribute

    package = importlib.import_module(name)
    epochs: list[dict[str, Any]] = []
    rows: list[int] = []

    def batches() -> Iterator[Any]:
        number, count = context.current().reading
        mine = np.arange(ROWS * number // count, ROWS * (number + 1) // count)
        for begin in range(0, len(mine), BATCH):
            part = mine[begin : begin + BATCH]
            rows.extend(part.tolist())
            x = (part / ROWS).reshape(-1, 1).astype("float32")
            yield x, 2 * x

    class Plan(package.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            present = list(context.current().present)
            epochs.append({"epoch": epoch, "present": present, "rows": sorted(rows)})
            rows.clear()
            if context.rank == 0 and epoch in STOPS:
                Path(folder, f"at-{epoch}").touch()
                while not Path(folder, f"go-{epoch}").exists():
                    time.sleep(0.01)

    layers = package.layers
    dense = layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = package.Sequential([layers.InputLayer((1,)), dense])
    model.compile(distribute.optimizer(package.optimizers.SGD(RATE)), "mse")
    signature = tuple(tf.TensorSpec([None, 1], tf.float32) for _ in range(2))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(2)
    history = model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[Plan()]).history
    weight = float(model.get_weights()[0][0, 0])
    return {"weight": weight, "epochs": epochs, "losses": history["loss"]}
