"""A `fit` of Keras that is killed, paused or resumed ends with the best weights, not the last."""

import functools
from pathlib import Path
from typing import Any

import pytest

from sparkdl import experiment
from sparkdl import search as spaces
from sparkdl.errors import AllTrialsFailedError
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

# The best value is that of epoch 1, and EarlyStopping ends the fit after epoch 3.
LOSSES = [5.0, 1.0, 3.0, 2.5, 2.4, 2.3, 2.2, 2.1]
BEST = {"bias": 1.0, "saved": 1.0, "epochs": 4.0}


def train(
    folder: Path, dies: str = "never", together: bool = False, rate: float = 0.0
) -> dict[str, float]:
    """Train a model whose bias is the number of the epoch.

    Args:
        folder: where a process leaves a file before it ends itself, so that this happens once.
        dies: never, "3" for the beginning of epoch 3, or "after" for the end of `fit`.
        together: use the EarlyStopping and the optimizer for several ranks.
        rate: has no effect; the first trial has the best values.
    """
    import os

    import keras
    import numpy as np

    from sparkdl import context, distribute
    from sparkdl.keras import Checkpoint, EarlyStopping

    def die(now: str) -> None:
        mark = folder / f"died-{dies}-{context.trial}"
        if now == dies and context.rank == context.world_size - 1 and not mark.exists():
            mark.touch()
            os._exit(1)

    class Plan(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            die(str(epoch))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["val_loss"] = LOSSES[epoch] + context.trial
            self.model.layers[-1].bias.assign([float(epoch)])

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(distribute.optimizer("sgd") if together else "sgd", "mse")
    stops = (EarlyStopping if together else keras.callbacks.EarlyStopping)(
        "val_loss", patience=2, restore_best_weights=True
    )
    file = f"best-{context.rank}.keras"
    saves = keras.callbacks.ModelCheckpoint(file, "val_loss", save_best_only=True)
    x = np.zeros((4, 1))
    fitted = model.fit(x, x, epochs=8, verbose=0, callbacks=[Plan(), stops, Checkpoint(), saves])
    die("after")
    saved = keras.saving.load_model(file)
    return {
        "bias": float(model.layers[-1].bias[0]),
        "saved": float(saved.layers[-1].bias[0]),
        "epochs": float(len(fitted.epoch)),
    }


def test_trials_that_are_killed_end_as_the_undisturbed_one(root: str, tmp_path: Path) -> None:
    run = experiment.launch(
        functools.partial(train, tmp_path),
        {"dies": ["never", "3", "after"]},
        **quiet(root, max_restarts=1, metric="bias"),
    )
    assert [trial.attempts for trial in run.trials] == [1, 2, 2]
    for trial in run.trials:
        assert BEST.items() <= trial.outputs.items()


def test_a_failed_trial_that_is_resumed_ends_as_an_undisturbed_one(
    root: str, tmp_path: Path
) -> None:
    function = functools.partial(train, tmp_path)
    options = quiet(root, metric="bias", run_id="nightly", max_restarts=0)
    with pytest.raises(AllTrialsFailedError):
        experiment.launch(function, {"dies": ["3"]}, **options)
    run = experiment.launch(
        function, {"dies": ["3"]}, **options, if_exists="resume", retry="failed"
    )
    [trial] = [trial for trial in run.trials if trial.state == "COMPLETE"]
    assert BEST.items() <= trial.outputs.items()


def test_trials_that_pause_and_go_on_end_with_their_best(root: str, tmp_path: Path) -> None:
    run = experiment.search(
        functools.partial(train, tmp_path),
        {"rate": spaces.Float(0.0, 1.0)},
        pruner={"asha": {"promote": True, "grace": 3}},
        num_trials=3,
        parallelism=1,
        **quiet(root, metric="val_loss", direction="min", seed=1),
    )
    assert [trial.state for trial in run.trials] == ["COMPLETE", "PRUNED", "PRUNED"]
    assert run.trials[0].attempts == 2
    assert BEST.items() <= run.trials[0].outputs.items()


def test_ranks_that_are_killed_end_as_undisturbed_ones(root: str, tmp_path: Path) -> None:
    function = functools.partial(train, tmp_path, "3", together=True)
    run = experiment.allreduce(function, num_workers=2, **quiet(root, max_restarts=1))
    assert run.trials[0].attempts == 2
    assert BEST.items() <= run.result.items()
