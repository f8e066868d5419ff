"""The states of callbacks: what is kept, what is found again, and what is told."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sparkdl.distribute.callback_lists import add_last_callbacks
from sparkdl.distribute.callback_states import FitCallbacks, restore, states_of


class Own:
    """A callback of a user with a state."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class Other(Own):
    """Another class."""


class Slots:
    """A callback without `__dict__`."""

    __slots__ = ("count",)


class Odd:
    """A value that can be neither copied nor compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


class OddList(list[Any]):
    """A list that cannot be copied."""

    def copy(self) -> Any:
        raise RuntimeError


class Counts:
    """A callback of a user whose state is not kept."""

    def __init__(self, start: Any = 0) -> None:
        self.count: Any = start


def told(caplog: pytest.LogCaptureFixture) -> str:
    return "; ".join(record.getMessage() for record in caplog.records)


def through(directory: Path, before: list[Any], after: list[Any]) -> None:
    """Save the states of callbacks, as JSON and files, and restore them in others."""
    import json

    of_fit = FitCallbacks(before)
    of_fit.begin()
    for callback in before:
        if isinstance(callback, Counts):
            callback.count = [*callback.count, 1] if callback.count else 1
    saved = json.loads(json.dumps(of_fit.save(str(directory))))
    FitCallbacks(after).restore(str(directory), saved, tells=True)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float16", "int64", "bool", "complex64", "uint8", "bfloat16", "float8_e4m3fn"],
)
def test_arrays_come_back_as_they_were(tmp_path: Path, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, dtype, dtype))
    new = Own()
    through(tmp_path, [Own({"deep": [array, {"empty": array[:0]}], "turned": array.T})], [new])
    for found, given in [
        (new.state["deep"][0], array),
        (new.state["deep"][1]["empty"], array[:0]),
        (new.state["turned"], array.T),
    ]:
        assert (found.dtype, found.shape) == (given.dtype, given.shape)
        assert found.tobytes() == given.tobytes()


@pytest.mark.parametrize(
    "state", [None, True, 3, 0.1, float("inf"), "text", [], {}, {"a": [1, None, {"b": "c"}]}]
)
def test_values_come_back_as_they_were(tmp_path: Path, state: Any) -> None:
    new = Own()
    through(tmp_path, [Own(state)], [new])
    assert new.state == state
    assert type(new.state) is type(state)


def test_scalars_of_numpy_become_numbers() -> None:
    states, arrays = states_of([Own([np.float32(0.5), np.int64(3), np.array(2.5), np.bool_(True)])])
    assert (states[0]["state"], arrays) == ([0.5, 3, 2.5, True], [])


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ({"a": {1, 2}}, r"Own.get_state\(\)\['a'\]: it is a set"),
        ([{1: 2}], r"Own.get_state\(\)\[0\]: it is a dict"),
        (np.array([object()]), r"Own.get_state\(\): it is a ndarray"),
        (np.array(["text"]), r"Own.get_state\(\): it is a ndarray"),
    ],
)
def test_states_that_cannot_be_kept_are_named(state: Any, found: str) -> None:
    with pytest.raises(TypeError, match=found):
        states_of([Own(state)])


def test_callbacks_of_one_class_are_matched_by_their_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = [Own(), Other(), Own()]
    through(tmp_path, [Own("first"), Own("second"), Other("other")], new)
    assert [callback.state for callback in new] == ["first", "other", "second"]
    assert told(caplog) == ""


def test_lists_that_differ_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    new = [Own(), Own(), Own("its own")]
    through(tmp_path, [Own("first"), Other("other"), Own("second")], new)
    assert [callback.state for callback in new] == ["first", "second", "its own"]
    assert told(caplog) == (
        "fit goes on from a checkpoint; Own begins anew: the checkpoint has no state of it; "
        "the state of Other is not used: fit has no such callback."
    )


@pytest.mark.parametrize("start", [0, [3]])
def test_a_state_that_is_not_kept_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: Any
) -> None:
    through(tmp_path, [Counts(start), Own()], [Counts(), Own()])
    assert told(caplog).count("Counts begins anew: it has no get_state and set_state") == 1


@pytest.mark.parametrize("start", [Odd(), OddList([Odd()]), np.array([Odd()])])
def test_any_attributes_of_a_callback_are_allowed(tmp_path: Path, start: Any) -> None:
    callback: Any = Counts(start)
    of_fit = FitCallbacks([callback, Slots()])
    of_fit.begin()
    assert of_fit.save(str(tmp_path))["callbacks"] == []
    callback.count = np.array([Odd()])
    assert of_fit.save(str(tmp_path))["forgotten"] == ["Counts"]


def test_a_value_of_keras_that_cannot_be_kept_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another callback may log anything, which a History takes over."""
    keras = pytest.importorskip("keras")
    histories = [keras.callbacks.History() for _ in range(2)]
    for history in histories:
        history.on_train_begin()
    histories[0].history = {"loss": [np.ones(2)], "odd": [{1, 2}]}
    new = Own()
    through(tmp_path, [histories[0], Own(np.arange(3))], [histories[1], new])
    assert (histories[1].history, new.state.tolist()) == ({}, [0, 1, 2])
    assert told(caplog) == (
        "fit goes on from a checkpoint; History begins anew: sparkdl.keras.Checkpoint cannot keep "
        "History['history']['odd'][0]: it is a set; expected numbers, text, None, lists, "
        "dicts with text as keys, and NumPy arrays of numbers."
    )


def test_checkpoints_of_earlier_versions_are_told(caplog: pytest.LogCaptureFixture) -> None:
    FitCallbacks([Own()]).restore("nowhere", {"epochs_done": 3}, tells=True)
    assert told(caplog).endswith("Own begins anew: the checkpoint has no state of it.")
    caplog.clear()
    FitCallbacks([Own()]).restore("nowhere", {"epochs_done": 3}, tells=False)
    FitCallbacks([Counts()]).restore("nowhere", {"epochs_done": 3}, tells=True)
    assert told(caplog) == ""


def test_callbacks_of_keras_are_matched_by_their_metric() -> None:
    keras = pytest.importorskip("keras")
    stops = [keras.callbacks.EarlyStopping(metric) for metric in ("loss", "val_loss")]
    for callback, best in zip(stops, [0.25, 4.0], strict=True):
        callback.on_train_begin()
        callback.best, callback.best_weights = best, [np.full(2, best, "float32")]
    states, arrays = states_of([*stops, keras.callbacks.CSVLogger("log.csv")])
    new = [keras.callbacks.EarlyStopping(metric) for metric in ("val_loss", "val_auc", "loss")]
    for callback in new:
        callback.on_train_begin()
    remarks = restore(new, states, arrays)
    for callback in new:  # Keras does it in the first epoch, and up to 3.6 sets the value, too.
        callback.mode = "min"
        callback._set_monitor_op()
    assert [callback.best for callback in (new[0], new[2])] == [4.0, 0.25]
    assert new[1].best in (None, float("inf"))
    assert new[0].best_weights[0].tolist() == [4.0, 4.0]
    assert remarks == ["EarlyStopping('val_auc') begins anew: the checkpoint has no state of it"]


def test_tensorboard_goes_on_with_the_number_of_its_batch() -> None:
    keras = pytest.importorskip("keras")
    before, after = (keras.callbacks.TensorBoard("logs") for _ in range(2))
    numbers = [
        name for name in ("_global_train_batch", "_global_test_batch") if hasattr(after, name)
    ]
    for name in numbers:
        setattr(before, name, 7)
    assert restore([after], *states_of([before])) == []
    assert [getattr(after, name) for name in numbers] == [7] * len(numbers)
    assert numbers


def test_a_list_of_callbacks_gets_its_last_ones_once() -> None:
    """Keras calls `set_model` again if a list is given to a second `fit`."""

    class Lists:
        def __init__(self, *callbacks: str) -> None:
            self.callbacks = list(callbacks)

        def set_model(self, model: Any) -> None:
            self.model = model

    add_last_callbacks(Lists, lambda callback, _: {"a": "last"}.get(callback))
    lists = Lists("a", "b")
    lists.set_model(1)
    lists.callbacks.append("c")
    lists.set_model(2)
    assert (lists.callbacks, lists.model) == (["a", "b", "c", "last"], 2)
