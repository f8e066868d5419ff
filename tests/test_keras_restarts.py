"""A `fit` that is killed and goes on ends as an undisturbed one: weights, epochs, best file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

EPOCHS = 8
# The best value is at epoch 1, and the third one that is no better at epoch 4.
LOSSES = [5.0, 1.0, 3.0, 2.5, 2.4, 2.3, 2.2, 2.1]


class Killed(Exception):
    """The process ends."""


def plan(killed_in: float | None) -> Any:
    """Return the callback that sets the values of validation, and ends the process.

    Args:
        killed_in: the epoch at whose beginning the process ends, with .5 at its end; None for none.
    """
    import keras

    class Plan(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == killed_in:
                raise Killed

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["val_loss"] = LOSSES[epoch]
            if epoch + 0.5 == killed_in:
                raise Killed

    return Plan()


def build() -> Any:
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile(
        keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5), "mse", run_eagerly=True
    )
    return model


def fit(callbacks: list[Any], killed_in: float | None = None, epochs: int = EPOCHS) -> Any:
    """Return the model after its `fit`; None if the process ended."""
    import numpy as np

    x = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    model = build()
    given = [plan(killed_in), *callbacks]
    try:
        model.fit(
            x, x[:, :2], epochs=epochs, batch_size=8, shuffle=False, verbose=0, callbacks=given
        )
    except Killed:
        return None
    return model


def stops() -> Any:
    import keras

    return keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)


def stops_together() -> Any:
    from sparkdl.keras import EarlyStopping

    return EarlyStopping("val_loss", patience=3, restore_best_weights=True)


def reduces() -> Any:
    import keras

    return keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=2, cooldown=1)


def saves() -> Any:
    import keras

    return keras.callbacks.ModelCheckpoint("best.keras", "val_loss", save_best_only=True)


def saves_within() -> Any:
    import keras

    from sparkdl import context

    files = f"{context.checkpoint_dir}/{{epoch}}-{{batch}}.keras"
    return keras.callbacks.ModelCheckpoint(files, save_freq=3)


def warms() -> Any:
    from sparkdl.keras import LearningRateWarmup

    return LearningRateWarmup(0.01, epochs=5, num_workers=4)


def swaps() -> Any:
    import keras

    return keras.callbacks.SwapEMAWeights(swap_on_epoch=True)


def averages() -> Any:
    """A user's callback with a state: it moves the weights to their mean over all epochs."""
    import keras
    import numpy as np

    class Average(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            self.count, self.sums = 0, [np.zeros_like(w) for w in self.model.get_weights()]

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.count += 1
            pairs = zip(self.sums, self.model.get_weights(), strict=True)
            self.sums = [a + b for a, b in pairs]
            self.model.set_weights([s / self.count for s in self.sums])

        def get_state(self) -> Any:
            return {"count": self.count, "nested": [{"sums": self.sums}]}

        def set_state(self, state: Any) -> None:
            self.count, self.sums = state["count"], state["nested"][0]["sums"]

    return Average()


KINDS = [stops, stops_together, reduces, saves, saves_within, warms, swaps, averages]


def outcome(model: Any, folder: Path) -> dict[str, Any]:
    import keras

    from sparkdl import context

    paths = [*folder.glob("*.keras"), *Path(context.checkpoint_dir).glob("*.keras")]
    files = {path.name: keras.saving.load_model(path).get_weights() for path in paths}
    return {
        "weights": [w.tobytes() for w in model.get_weights()],
        "optimizer": [v.numpy().tobytes() for v in model.optimizer.variables],
        "history": model.history.history,
        "epochs": model.history.epoch,
        "files": {name: [w.tobytes() for w in weights] for name, weights in files.items()},
    }


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Enter the folder of a process, of an attempt at a trial."""

    def enter(trial: str, attempt: int = 0) -> Path:
        (folder := tmp_path / f"{trial}-{attempt}").mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("SPARKDL_CONTEXT", json.dumps({"folder": str(tmp_path / trial)}))
        return folder

    return enter


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=pytest.mark.thorough)
        if k in (saves, saves_within, swaps, warms)
        else k
        for k in KINDS
    ],
)
def test_a_restarted_fit_ends_as_an_undisturbed_one(
    places: Any, kind: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    from sparkdl.keras import Checkpoint

    undisturbed = places("undisturbed")
    expected = outcome(fit([kind()]), undisturbed)
    for order in ("checkpoint first", "checkpoint last"):
        for attempt, killed_in in enumerate([2.5, 3, 4.5, None, None]):
            folder = places(order, attempt)
            callbacks = [Checkpoint(), kind()]
            model = fit(callbacks if order == "checkpoint first" else callbacks[::-1], killed_in)
            if model is not None:
                assert outcome(model, folder) == expected, (order, attempt)
        assert model is not None
    assert not [r for r in caplog.records if r.name == "sparkdl.distribute"]
