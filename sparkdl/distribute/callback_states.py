"""Runs in the training process. The state of Keras's callbacks, for a `fit` that goes on later.

Keras has no protocol for it: each `fit` starts its callbacks anew. The attributes of Keras's own
callbacks are kept here; a callback with the methods `get_state` and `set_state` keeps what they
say. A state consists of what JSON can hold, and of arrays, which are kept apart from the JSON.
"""

import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.errors import named_type

_logger = logging.getLogger("sparkdl.distribute")

# The attributes of Keras's callbacks that a `fit` changes, with those of tf_keras.
_KEPT: Mapping[str, tuple[str, ...]] = {
    "BackupAndRestore": ("_batches_seen_since_last_saving", "_current_epoch", "_last_batch_seen"),
    "EarlyStopping": ("best", "best_epoch", "best_weights", "stopped_epoch", "wait"),
    "History": ("epoch", "history"),
    "ModelCheckpoint": (
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
        "best",
        "epochs_since_last_save",
    ),
    "ReduceLROnPlateau": ("best", "cooldown_counter", "wait"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_test_batch", "_global_train_batch"),
}
_KERAS = ("keras", "tf_keras")
# A place in the JSON for an array: its number.
_ARRAY = "$array"
_FILE = "callbacks.h5"


class FitCallbacks:
    """The callbacks of a `fit`, with which a checkpoint is committed.

    Args:
        callbacks: the callbacks, in order; the list may grow.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = callbacks
        self._first: dict[int, dict[str, Any]] = {}

    def begin(self) -> None:
        """Learn how the callbacks are at the beginning of `fit`, after all of them have begun."""
        self._first = {
            id(c): {name: _copy(value) for name, value in _attributes(c).items()}
            for c in self._callbacks
            if not _knows(c)
        }

    def save(self, directory: str) -> dict[str, Any]:
        """Write the arrays and files of the callbacks, and return the rest as a value for JSON.

        Args:
            directory: the directory of a checkpoint.

        Raises:
            TypeError: if `get_state` of a callback returns something that cannot be kept.
        """
        states, arrays = states_of(self._callbacks)
        _write_arrays(directory, arrays)
        for i, (state, callback) in enumerate(
            zip(states, _with_state(self._callbacks), strict=True)
        ):
            # A restart begins in an empty folder, on another host.
            if (path := _file_of(callback)) and path.is_file():
                state["file"] = f"callback-{i}{path.suffix}"
                shutil.copyfile(path, Path(directory, state["file"]))
        forgotten = [_name(c) for c in self._callbacks if not _knows(c) and self._has_changed(c)]
        return {"callbacks": states, "forgotten": forgotten}

    def restore(self, directory: str, saved: Mapping[str, Any], tells: bool) -> None:
        """Give the callbacks the states of `save`, after all of them have begun.

        Args:
            directory: the directory of a checkpoint.
            saved: the result of `save`. A checkpoint of an earlier version has none.
            tells: log what begins anew.
        """
        states = saved.get("callbacks", [])
        remarks = restore(self._callbacks, states, _read_arrays(directory), directory)
        if forgotten := saved.get("forgotten"):
            remarks.append(f"{', '.join(forgotten)} begins anew: it has no get_state and set_state")
        if remarks and tells:
            _logger.warning("fit goes on from a checkpoint; %s.", "; ".join(remarks))

    def _has_changed(self, callback: Any) -> bool:
        first, kept = self._first.get(id(callback), {}), _kept_attributes(callback)
        now = {name: v for name, v in _attributes(callback).items() if name not in kept}
        return any(name not in first or not _is_same(first[name], now[name]) for name in now)


def _attributes(callback: Any) -> dict[str, Any]:
    return getattr(callback, "__dict__", {})  # There is none in a class with `__slots__`.


def _copy(value: Any) -> Any:
    try:
        return copy(value) if isinstance(value, list | dict | set | np.ndarray) else value
    except Exception:  # noqa: BLE001 The code of users may raise anything.
        return value


def _is_same(first: Any, now: Any) -> bool:
    if first is now:
        return True
    try:
        return bool(np.array_equal(first, now) if isinstance(now, np.ndarray) else first == now)
    except Exception:  # noqa: BLE001 Such as two lists of arrays, or the code of users.
        return False


def _knows(callback: Any) -> bool:
    """Return True if a callback has no state besides the one that is kept."""
    package = type(callback).__module__.partition(".")[0]
    # A CSVLogger without `append` begins its file again.
    is_plain = type(callback).__name__ != "CSVLogger" or callback.append
    return _has_protocol(callback) or (package in (*_KERAS, "sparkdl") and is_plain)


def _has_protocol(callback: Any) -> bool:
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def _kept_attributes(callback: Any) -> list[str]:
    """Return the attributes that are kept of a callback of Keras, or of a subclass of it."""
    names = _KEPT.get(_kind_of(callback), ())
    return [name for name in names if hasattr(callback, name)]


def _kind_of(callback: Any) -> str:
    """Return the name of the class of Keras that a callback belongs to."""
    classes = type(callback).__mro__
    return next((c.__name__ for c in classes if c.__module__.partition(".")[0] in _KERAS), "")


def _with_state(callbacks: Iterable[Any]) -> list[Any]:
    return [c for c in callbacks if _kept_attributes(c) or _has_protocol(c)]


def _file_of(callback: Any) -> Path | None:
    """Return the only file that a callback writes; None if there are several, or none."""
    path = str(callback.filepath) if _kind_of(callback) == "ModelCheckpoint" else ""
    return Path(path) if path and "{" not in path else None


def _name(callback: Any) -> str:
    """Return the class and the metric of a callback, by which it is found after a restart."""
    monitor = getattr(callback, "monitor", None)
    return type(callback).__name__ + (f"({monitor!r})" if isinstance(monitor, str) else "")


def states_of(callbacks: Iterable[Any], strict: bool = True) -> tuple[list[Any], list[Any]]:
    """Return the states of callbacks as a value for JSON, and the arrays in them.

    A callback of Keras with a value that cannot be kept will begin anew, as the state says.

    Args:
        callbacks: the callbacks of a `fit`, in order.
        strict: raise an error of `get_state`, too.

    Raises:
        TypeError: if strict and `get_state` returns something else than numbers, text, None, lists,
            dicts with text as keys, and arrays.
    """
    states: list[Any] = []
    arrays: list[Any] = []
    for callback in _with_state(callbacks):
        state = {"name": _name(callback), "attributes": {}}
        num_arrays = len(arrays)
        try:
            state |= _state_of(callback, arrays)
        except Exception as exc:
            if strict and _has_protocol(callback):
                raise
            # Users may log any value, which History takes over.
            del arrays[num_arrays:]
            state["lost"] = str(exc).rstrip(".")
        states.append(state)
    return states, arrays


def _state_of(callback: Any, arrays: list[Any]) -> dict[str, Any]:
    values = {name: getattr(callback, name) for name in _kept_attributes(callback)}
    state = {"attributes": _to_json(values, arrays, _name(callback))}
    if _has_protocol(callback):
        where = f"{type(callback).__name__}.get_state()"
        state["state"] = _to_json(callback.get_state(), arrays, where)
    return state


def _to_json(value: Any, arrays: list[Any], where: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {k: _to_json(v, arrays, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(v, arrays, f"{where}[{i}]") for i, v in enumerate(value)]
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        is_stored = array.dtype.kind in "biufc" or _is_extended(array.dtype)
        if is_stored and (array.ndim or array.dtype.kind == "c"):
            arrays.append(array)
            return {_ARRAY: len(arrays) - 1}
        if is_stored:
            return array.item()
    raise TypeError(
        f"sparkdl.keras.Checkpoint cannot keep {where}: it is {named_type(value)}; expected "
        "numbers, text, None, lists, dicts with text as keys, and NumPy arrays of numbers."
    )


def _is_extended(dtype: Any) -> bool:
    """Return True for a number that NumPy does not have itself, such as bfloat16."""
    return dtype.kind == "V" and dtype.names is None and dtype.type is not np.void


def restore(
    callbacks: Iterable[Any],
    states: Sequence[Any],
    arrays: Sequence[Any],
    directory: str | None = None,
) -> list[str]:
    """Give callbacks the states of `states_of`, and return remarks about those that do not fit.

    States and callbacks belong together by class, by metric and by their order.

    Args:
        callbacks: the callbacks of a `fit`, in order, after all of them have begun.
        states: the states.
        arrays: the arrays in them.
        directory: the directory with the files of callbacks, if they are to be written.
    """
    waiting: dict[str, list[Any]] = defaultdict(list)
    for state in states:
        waiting[state["name"]].append(state)
    new: list[str] = []
    without_state: list[str] = []
    for callback in _with_state(callbacks):
        if not waiting[_name(callback)]:
            new.append(_name(callback))
            continue
        state = waiting[_name(callback)].pop(0)
        _set(callback, state, arrays)
        if "lost" in state:
            without_state.append(f"{_name(callback)} begins anew: {state['lost']}")
        if directory and "file" in state:
            _write_file(callback, Path(directory, state["file"]))
    old = [state["name"] for states_left in waiting.values() for state in states_left]
    return [
        *without_state,
        *([f"{', '.join(new)} begins anew: the checkpoint has no state of it"] if new else []),
        *([f"the state of {', '.join(old)} is not used: fit has no such callback"] if old else []),
    ]


def _set(callback: Any, state: Any, arrays: Sequence[Any]) -> None:
    for name, value in state["attributes"].items():
        if name in _kept_attributes(callback):
            setattr(callback, name, _from_json(value, arrays))
    if "best" in state["attributes"] and getattr(callback, "monitor_op", callback) is None:
        _keep_best(callback, _from_json(state["attributes"]["best"], arrays))
    if "state" in state and _has_protocol(callback):
        callback.set_state(_from_json(state["state"], arrays))


def _keep_best(callback: Any, best: Any) -> None:
    """Set the best value also after EarlyStopping has found the direction of its metric.

    Keras up to 3.6 does so in the first epoch of a `fit`, and sets the best value with it.
    """
    find_direction = callback._set_monitor_op

    def find_direction_only() -> None:
        find_direction()
        callback.best = best

    callback._set_monitor_op = find_direction_only


def _write_file(callback: Any, source: Path) -> None:
    if path := _file_of(callback):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Ranks of one host may write the same file.
        aside = path.with_name(f".{os.getpid()}-{path.name}")
        shutil.copyfile(source, aside)
        aside.replace(path)


def _from_json(value: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return [_from_json(v, arrays) for v in value]
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {k: _from_json(v, arrays) for k, v in value.items()}
    return value


def _write_arrays(directory: str, arrays: Sequence[Any]) -> None:
    """Write arrays as HDF5, like the weights of Keras."""
    if not arrays:
        return
    import h5py  # type: ignore[import-untyped]

    with h5py.File(Path(directory, _FILE), "w") as file:
        for i, array in enumerate(arrays):
            is_extended = _is_extended(array.dtype)  # HDF5 holds its bits.
            data = array.view(f"u{array.dtype.itemsize}") if is_extended else array
            file.create_dataset(str(i), data=data).attrs["dtype"] = array.dtype.name


def _read_arrays(directory: str) -> list[Any]:
    path = Path(directory, _FILE)
    if not path.exists():
        return []
    import h5py

    with h5py.File(path) as file:
        return [_as_written(file[str(i)]) for i in range(len(file))]


def _as_written(dataset: Any) -> Any:
    return dataset[()].view(dtype_named(dataset.attrs["dtype"]))


def dtype_named(name: str) -> Any:
    """Return the dtype with a name, also one that NumPy does not have itself."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, None) or name)
