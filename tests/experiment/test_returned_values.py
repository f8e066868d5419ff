"""One contract for what a function may return, in all verbs and in other systems' APIs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sparkdl.horovod.spark
from sparkdl import MirroredStrategyRunner, experiment, search
from sparkdl.errors import NotKeptError
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("four_executors")]

Function = Callable[..., Any]

# Each runs a function on executors, and returns its value.
VERBS: dict[str, Callable[[Function, str], Any]] = {
    "launch": lambda f, root: experiment.launch(f, **quiet(root)).result,
    "search": lambda f, root: (
        experiment.search(
            f, {"x": search.Int(0, 1)}, num_trials=1, metric="loss", direction="min", **quiet(root)
        ).best.result
    ),
    "allreduce": lambda f, root: experiment.allreduce(f, num_workers=2, **quiet(root)).result,
    "mirrored": lambda f, root: experiment.mirrored(f, **quiet(root)).result,
    "parameter_server": lambda f, root: (
        experiment.parameter_server(f, num_workers=1, num_ps=1, **quiet(root)).result
    ),
    "horovod": lambda f, root: experiment.horovod(f, num_workers=2, **quiet(root)).result,
    "horovod.run": lambda f, root: sparkdl.horovod.run(f, np=2, verbose=0)[1],
    "horovod.spark.run": lambda f, root: sparkdl.horovod.spark.run(f, num_proc=1, verbose=0)[0],
    "MirroredStrategyRunner": lambda f, root: MirroredStrategyRunner(
        num_slots=1, use_gpu=False
    ).run(f),
}


@pytest.fixture(autouse=True)
def root_of_runs(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)


def data(x: int = 0) -> dict[Any, Any]:
    """A value of each kind of data."""
    return {
        "loss": 0.5,
        "numbers": [1, 2.5, True, None, float("inf"), 10**400],
        "texts": ["a", "relu", b"\x00\xff", ""],
        "tuple": (1, ("a", [2])),
        "sets": ({1, 2}, frozenset({"a"})),
        "empty": ((), {}, [], set()),
        "arrays": (np.arange(6, dtype=np.float32).reshape(2, 3), np.array(["a", "bc"])),
        3: {(1, 2): "pair"},
    }


def lost(x: int = 0) -> dict[str, Any]:
    """A value with a part that cannot be kept."""
    return {"loss": 0.5, "odd": (1, object())}


@pytest.mark.parametrize("verb", VERBS)
def test_data_are_given_back_as_they_were(verb: str, root: str) -> None:
    given = VERBS[verb](data, root)
    assert repr(given) == repr(data())  # Also the types, and the order of dicts.
    for mine, theirs in zip(given["arrays"], data()["arrays"], strict=True):
        assert mine.dtype == theirs.dtype


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "MirroredStrategyRunner"])
def test_what_cannot_be_kept_raises_when_it_is_read(verb: str, root: str) -> None:
    with pytest.raises(NotKeptError, match=r"odd\.1', of type object, is not kept: .*return its p"):
        VERBS[verb](lost, root)
    assert [*experiment.history(root=root)["state"]] == ["COMPLETE"]  # The training is not lost.


@pytest.mark.parametrize("verb", ["launch", "allreduce", "horovod.run"])
def test_a_model_of_keras_is_given_back(verb: str, root: str) -> None:
    def train() -> Any:
        import keras

        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones((4, 2)), np.ones(4), verbose=0)
        return model, {"weights": model.get_weights()}

    model, rest = VERBS[verb](train, root)
    assert type(model).__name__ == "Sequential"
    for mine, theirs in zip(model.get_weights(), rest["weights"], strict=True):
        np.testing.assert_array_equal(mine, theirs)
