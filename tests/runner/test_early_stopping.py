"""Bad trials are stopped early, as the pruner says, and their slots are used at once."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from sparkdl import context, experiment
from sparkdl import search as spaces
from sparkdl.errors import TrialPruned
from sparkdl.runs import Run
from tests.helpers.processes import eventually, is_alive, processes_of
from tests.helpers.runs import journal_lines, journal_text, quiet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


def states(run: Run) -> list[str]:
    return [str(trial.state) for trial in run.trials]


def events(run: Run) -> list[dict[str, Any]]:
    return journal_lines(run.path)


def asha() -> optuna.pruners.BasePruner:
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)


def replayed(pruner: optuna.pruners.BasePruner, run: Run) -> list[int]:
    """Which trials this pruner stops, in this order, where it hears what the journal says.

    One that was stopped is asked about no more.
    """
    study = optuna.create_study(direction="maximize", pruner=pruner)
    trials: dict[int, optuna.Trial] = {}
    stopped: list[int] = []
    for event in events(run):
        for new in event.get("trials", ()):
            trials[new["number"]] = study.ask()
        for number, step, value in event.get("reports", ()):
            if number in stopped:
                continue
            trials[number].report(value, step)
            if trials[number].should_prune():
                stopped.append(number)
        if event["event"] == "trial" and event["state"] in ("COMPLETE", "PRUNED"):
            state = optuna.trial.TrialState[event["state"]]
            study.tell(trials[event["number"]], event.get("value"), state)
    return stopped


def curve(quality: float, step: int) -> float:
    """Ranked as their qualities at every step."""
    return quality * (1 - 0.5**step)


@pytest.mark.acceptance("A13")
@pytest.mark.parametrize("make", [asha, lambda: optuna.pruners.MedianPruner(n_startup_trials=2)])
def test_stopped_trials_are_those_of_the_pruner(
    root: str, make: Callable[[], optuna.pruners.BasePruner]
) -> None:
    path = f"{root}/toys"

    def train(quality: float) -> float:
        for step in range(1, 9):
            context.report(curve(quality, step), step)
            while f"[{context.trial}, {step}, " not in journal_text(path):
                time.sleep(0.01)
        return curve(quality, 8)

    qualities = [0.5, 0.9, 0.1, 0.7, 0.3, 1.0, 0.2, 0.8]
    first = [{"quality": q} for q in qualities]
    run = experiment.search(
        train,
        {"quality": spaces.Float(0, 1)},
        num_trials=8,
        pruner=make(),
        initial_params=first,
        **quiet(root, metric="score", run_id="toys"),
    )
    told = [event["number"] for event in events(run) if event["event"] == "stop"]
    assert told == replayed(make(), run)
    pruned = {trial.number for trial in run.trials if trial.state == "PRUNED"}
    assert pruned
    assert pruned <= set(told)  # One that was told as it returned is COMPLETE.
    assert run.state == "COMPLETE"
    assert run.best.params == {"quality": 1.0}
    for trial in run.trials:
        assert trial.metrics["score" if trial.state == "COMPLETE" else "value"] > 0
        if trial.state == "PRUNED":
            assert trial.value is None
            assert len(trial.history) < 8 or trial.number in told
    kept = experiment.load(run.path)
    assert states(kept) == states(run)


@pytest.mark.acceptance("A13")
def test_no_stage_waits_for_a_slow_trial(root: str, tmp_path: Path) -> None:
    """While one trial sleeps, the other slot runs further trials: ASHA waits for no trial."""

    def train(x: float) -> float:
        (tmp_path / f"began-{context.trial}").touch()
        for step in range(1, 4):
            context.report(x, step)
        deadline = time.monotonic() + 200
        while context.trial == 0 and time.monotonic() < deadline:
            if len(list(tmp_path.glob("began-*"))) >= 1 + 5:
                return 1.0
            time.sleep(0.05)
        return 0.0

    options = quiet(root, seed=2, initial_params=[{"x": 1.0}])
    run = experiment.search(
        train, {"x": spaces.Float(0, 1)}, num_trials=7, pruner=asha(), **options
    )
    assert run.trials[0].value == 1.0  # Five others began while it waited.
    assert (run.state, len(run.trials)) == ("COMPLETE", 7)


def test_one_that_is_silent_is_ended(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdl.runner.loop.trial_messages.STOP_GRACE_S", 3.0)

    def train(x: int) -> float:
        context.report(float(x), 0)
        if x == 0:
            (tmp_path / "pid").write_text(str(os.getpid()))
            time.sleep(300)
        return x

    options = quiet(root, parallelism=1, initial_params=[{"x": 0}, {"x": 1}])
    pruner = optuna.pruners.ThresholdPruner(lower=0.5)
    run = experiment.search(train, {"x": [0, 1]}, num_trials=2, pruner=pruner, **options)
    assert states(run) == ["PRUNED", "COMPLETE"]
    said = events(run)
    told = next(e["time"] for e in said if e["event"] == "stop")
    ended = next(e["time"] for e in said if e.get("state") == "PRUNED")
    assert 2.5 < ended - told < 150  # Half the time that it sleeps.
    assert eventually(lambda: not is_alive(int((tmp_path / "pid").read_text())))
    assert run.trials[0].metrics == experiment.load(run.path).trials[0].metrics == {"value": 0.0}
    assert eventually(lambda: not processes_of(run.id))


def test_one_that_catches_everything_is_ended(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdl.runner.loop.trial_messages.STOP_GRACE_S", 3.0)

    def train(x: int) -> float:
        for step in range(100_000):
            try:
                context.report(float(x), step)
            except BaseException:
                (tmp_path / f"caught-{x}").touch()
            if x:
                return x
            time.sleep(0.05)
        return x

    options = quiet(root, parallelism=1, initial_params=[{"x": 0}, {"x": 1}])
    pruner = optuna.pruners.ThresholdPruner(lower=0.5)
    run = experiment.search(train, {"x": [0, 1]}, num_trials=2, pruner=pruner, **options)
    assert states(run) == ["PRUNED", "COMPLETE"]
    assert [p.name for p in tmp_path.glob("caught-*")] == ["caught-0"]
    assert eventually(lambda: not processes_of(run.id))


def test_what_is_put_in_order_and_what_follows_a_stop(root: str, tmp_path: Path) -> None:
    """A stop passes through `finally`; what a program raises because of it is no failure."""

    def train(x: int) -> float:
        try:
            for step in range(1000):
                context.report(float(x), step)
                if x == 2:
                    return x
                time.sleep(0.02)
        except TrialPruned as stopped:
            (tmp_path / f"closed-{x}").touch()
            if x == 1:
                raise RuntimeError("the file was open") from stopped
            raise
        return x

    first = [{"x": x} for x in (0, 1, 2)]
    options = quiet(root, initial_params=first, max_failed_trials=0)
    pruner = optuna.pruners.ThresholdPruner(lower=1.5)
    run = experiment.search(train, {"x": [0, 1, 2]}, num_trials=3, pruner=pruner, **options)
    assert states(run) == ["PRUNED", "PRUNED", "COMPLETE"]
    assert sorted(p.name for p in tmp_path.glob("closed-*")) == ["closed-0", "closed-1"]
    assert run.failed == []


def test_a_failure_before_any_stop_is_a_failure(root: str) -> None:
    def train(x: int) -> float:
        context.report(float(x), 0)
        if x == 1:
            raise ValueError("mine")
        return x

    options = quiet(root, initial_params=[{"x": 1}, {"x": 2}])
    run = experiment.search(train, {"x": [1, 2]}, num_trials=2, pruner="median", **options)
    assert states(run) == ["FAILED", "COMPLETE"]


def test_the_other_direction(root: str) -> None:
    def train(loss: float) -> float:
        for step in range(20 if loss < 0.9 else 10_000):  # The bad one goes on until it is stopped.
            context.report({"loss": loss, "accuracy": 1 - loss}, min(step, 19))
            time.sleep(0.02)
        return loss

    options = quiet(root, metric="loss", direction="min", parallelism=1)
    run = experiment.search(
        train,
        {"loss": spaces.Float(0, 1)},
        num_trials=3,
        initial_params=[{"loss": 0.5}, {"loss": 0.9}, {"loss": 0.1}],
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1),
        **options,
    )
    assert states(run) == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert run.best.value == 0.1


def test_reports_of_other_metrics_stop_nothing(root: str) -> None:
    def train(x: int) -> dict[str, float]:
        for step in range(20):
            context.report({"other": -100.0}, step)
        return {"score": float(x)}

    pruner = optuna.pruners.ThresholdPruner(lower=0)
    options = quiet(root, metric="score")
    run = experiment.search(train, {"x": [0, 1]}, num_trials=2, pruner=pruner, **options)
    assert states(run) == ["COMPLETE"] * 2
    assert not [event for event in events(run) if event["event"] in ("reports", "stop")]


def test_steps_that_come_twice_or_are_negative(root: str) -> None:
    def train(x: int) -> float:
        for step in (-1, 0, 0, 5, 3, 3):
            context.report(float(x + step), step)
        return x

    run = experiment.search(train, {"x": [0, 1, 2]}, num_trials=3, pruner="median", **quiet(root))
    assert states(run) == ["COMPLETE"] * 3


def test_keras(root: str) -> None:
    def train(rate: float) -> float:
        import keras
        import numpy as np

        from sparkdl.keras import Report

        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate), "mse")
        features = np.ones((32, 4), "float32")

        class Slowly(keras.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                time.sleep(0.05 if rate else 1.0)  # Time to stop the one that learns nothing.

        history = model.fit(
            features,
            features[:, :1],
            epochs=20,
            verbose=0,
            callbacks=[Report("loss"), Slowly()],
        )
        return float(history.history["loss"][-1])

    options = quiet(root, metric="loss", direction="min", parallelism=1)
    run = experiment.search(
        train,
        {"rate": [0.05, 0.0]},
        num_trials=2,
        initial_params=[{"rate": 0.05}, {"rate": 0.0}],
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1),
        **options,
    )
    assert states(run) == ["COMPLETE", "PRUNED"]
    assert len(run.trials[0].history) == 20
    assert len(run.trials[1].history) < 20
    assert eventually(lambda: not processes_of(run.id))
