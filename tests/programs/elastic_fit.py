"""A `fit` whose callbacks have states, for an elastic gang, see `test_elastic_fit`."""

import time
from pathlib import Path
from typing import Any

LOST_IN, EPOCHS = 3, 8
# The best value is at epoch 1, and the third one that is no better at epoch 4.
LOSSES = [5.0, 1.0, 3.0, 2.5, 2.4, 2.3, 2.2, 2.1]


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def plan(folder: Path) -> Any:
    """Return a callback that sets the values of validation, and waits where a rank is lost."""
    import keras

    from sparkdl import context

    me = context.current()

    class Plan(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch
            if (epoch, me.rank) == (LOST_IN, 1) and not me.is_late:
                Path(folder, "hangs").touch()
                time.sleep(600)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if (self.epoch, batch, me.rank, me.world_size) == (LOST_IN, 1, 0, 2):
                wait_for(Path(folder, "awaited"))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["val_loss"] = LOSSES[epoch]

    return Plan()


def counts() -> Any:
    """Return a user's callback that sums the weights at the beginning of epochs."""
    import keras

    class Counts(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            self.count, self.total = 0, self.model.get_weights()[0] * 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.count += 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.total = self.total + self.model.get_weights()[0]

        def get_state(self) -> Any:
            return {"count": self.count, "total": self.total}

        def set_state(self, state: Any) -> None:
            self.count, self.total = state["count"], state["total"]

    return Counts()


def fits(folder: Path) -> Any:
    """Return what a `fit` has left behind. All ranks have the same batches."""
    import keras
    import numpy as np

    from sparkdl import distribute

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile(distribute.optimizer(keras.optimizers.Adam(0.1)), "mse")
    x = np.tile(np.arange(12, dtype="float32").reshape(4, 3) / 12, (4, 1))
    stops = keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)
    reduces = keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=2, cooldown=1)
    own = counts()
    history = model.fit(
        *(x, x[:, :2]),
        epochs=EPOCHS,
        batch_size=4,
        shuffle=False,
        verbose=0,
        callbacks=[plan(folder), stops, reduces, own],
    )
    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "rate": float(model.optimizer.learning_rate),
        "epochs": history.epoch,
        "values": history.history["val_loss"],
        "stops": [stops.best, stops.wait, stops.stopped_epoch],
        "reduces": [reduces.best, reduces.wait, reduces.cooldown_counter],
        "own": [own.count, own.total.tolist()],
    }
