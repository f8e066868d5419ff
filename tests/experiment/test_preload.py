"""`preload=` on embedded Spark: one call for the trials of an executor, and what goes wrong."""

import os
import threading
from typing import Any

import pytest

from sparkdl import context, experiment
from sparkdl.errors import AllTrialsFailedError, ConfigError, FunctionError
from tests.helpers.processes import eventually, is_alive
from tests.helpers.runs import quiet

pytestmark = pytest.mark.usefixtures("spark")


def functions() -> tuple[Any, Any]:
    """Functions that travel as a whole, as those of a script or notebook do."""

    def load() -> dict[str, Any]:
        return {"pid": os.getpid(), "weights": [0.5] * 1000}

    def train(x: int) -> dict[str, float]:
        base = context.preloaded
        return {"server": base["pid"], "own": os.getpid(), "score": x * sum(base["weights"])}

    return load, train


load, train = functions()


def servers_of(run: Any) -> set[int]:
    return {int(trial.outputs["server"]) for trial in run.trials}


def test_the_trials_of_a_run_share_what_was_loaded_once(root: str) -> None:
    run = experiment.launch(train, {"x": [1, 2, 3]}, preload=load, **quiet(root, metric="score"))
    assert run.best.value == 1500
    (server,) = servers_of(run)
    assert server not in {int(trial.outputs["own"]) for trial in run.trials}

    # Another run shares nothing with it, and the memory of the first is free.
    other = experiment.launch(train, {"x": [1]}, preload=load, **quiet(root, metric="score"))
    assert server not in servers_of(other)
    assert eventually(lambda: not is_alive(server))
    without = experiment.launch(lambda: float(context.preloaded is None), **quiet(root))
    assert without.best.value == 1

    # The run keeps the function.
    again = experiment.reproduce(run, **quiet(root))
    assert again.best.value == 1500
    assert len(servers_of(again)) == 1 and servers_of(again) != {server}


def test_a_failed_run_is_resumed_with_another_function(root: str) -> None:
    def broken() -> None:
        print("reading the weights")
        raise ValueError("the weights are damaged")

    def train(x: int) -> float:
        return x * sum(context.preloaded["weights"])

    with pytest.raises(AllTrialsFailedError, match="the weights are damaged") as caught:
        experiment.launch(train, {"x": [1, 2]}, preload=broken, **quiet(root))
    assert isinstance(caught.value.__cause__, ValueError)
    failed = caught.value.run.trials[0]
    assert f"Its log: {failed.path}" in failed.error and "in broken" in failed.error
    with open(f"{failed.path}/log.txt") as log:
        assert "reading the weights\n" in log.read()
    run = experiment.resume(caught.value.run, preload=load, retry_failed=True, progress=False)
    assert run.best.value == 1000


def test_a_search_has_it_too(root: str) -> None:
    options = quiet(root, metric="score", direction="max", seed=1)
    run = experiment.search(train, {"x": [1, 2]}, num_trials=2, preload=load, **options)
    assert run.best.value == 1000


def test_what_cannot_be_called_or_sent_is_refused(root: str) -> None:
    lock = threading.Lock()
    with pytest.raises(FunctionError, match=r"preload=<lambda>: .*'lock', a lock"):
        experiment.launch(train, {"x": [1]}, preload=lambda: lock, **quiet(root))
    with pytest.raises(ConfigError, match="cannot be called without arguments"):
        experiment.launch(train, {"x": [1]}, preload=train, **quiet(root))
    with pytest.raises(ConfigError, match="preload is a dict; expected a function"):
        experiment.launch(train, {"x": [1]}, preload={}, **quiet(root))


def test_one_trial_in_this_process_has_it() -> None:
    value = experiment.try_one(lambda: sum(context.preloaded["weights"]), preload=load)
    assert value == 500
    assert context.preloaded is None
