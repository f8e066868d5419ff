"""Runs in the training process. Turn what a training function returned into outputs for JSON."""

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkdl import storage
from sparkdl.polling import retry

__all__ = ["Outputs", "collect_outputs"]

# Seconds for which a full disk or a store that fails is waited for.
COPY_S = 60.0

_logger = logging.getLogger("sparkdl.cluster")

# The end of a text that is the path of a file.
_FILE = re.compile(
    r"\.(?:bin|ckpt|csv|gz|h5|hdf5|index|jpe?g|json|jsonl|joblib|keras|log|model|np[yz]|onnx|parquet"
    r"|pb|pdf|pickle|pkl|png|pt|pth|safetensors|tar|tflite|tfrecord|torch|txt|weights|yaml|yml|zip)$",
    re.IGNORECASE,
)


# The file by which the folder of a SavedModel is recognised.
_SAVED_MODEL = "saved_model.pb"


@dataclass
class Outputs:
    """The value of a training function, in the form in which it is kept.

    Attributes:
        values: JSON values by name.
        shape: `dict`, `list` for a value of each metric, or `value` for a single value.
        notes: a remark about each value of which less is kept than the user may expect.
    """

    values: dict[str, Any] = field(default_factory=dict)
    shape: str = "value"
    notes: list[str] = field(default_factory=list)


def collect_outputs(returned: Any, metrics: Sequence[str | None], folder: str | Path) -> Outputs:
    """Return the value of a training function as JSON values; copy its files to the trial.

    A single number is stored under the name of the metric, or under `value`; a tuple of as many
    numbers as there are metrics under the names of these. The path of a file or of a SavedModel,
    and a `Path` of any folder, is replaced by the path of the copy, relative to `folder`. Files
    and folders inside `folder`, such as those in the working directory of the trial, are not
    copied: their paths become relative to `folder`.

    Args:
        returned: the value that the function returned.
        metrics: the names of the metrics; `[None]` where the user named none.
        folder: the folder of the trial.

    Example:
        >>> collect_outputs(0.9, ["accuracy"], ".").values
        {'accuracy': 0.9}
        >>> collect_outputs((0.9, 5), ["accuracy", "latency"], ".").values
        {'accuracy': 0.9, 'latency': 5}
        >>> collect_outputs({"accuracy": 0.9, "model": "nothere.keras"}, ["accuracy"], ".").notes
        ["the returned 'model' is 'nothere.keras', which is no file; it is kept as text"]
    """
    outputs = Outputs()
    if returned is None:
        return outputs
    if isinstance(returned, Mapping):
        outputs.shape = "dict"
    else:
        several = len(metrics) > 1 and isinstance(returned, tuple | list)
        outputs.shape = "list" if several else "value"
        values = returned if several else [returned]
        returned = {name or "value": value for name, value in zip(metrics, values, strict=False)}
    for name, value in returned.items():
        kept, note = _output(str(name), value, Path(folder))
        outputs.values[str(name)] = kept
        if note:
            outputs.notes.append(note)
            _logger.warning("%s.", note)
    return outputs


def _output(name: str, value: Any, folder: Path) -> tuple[Any, str | None]:
    """Return the form in which a value is kept, and a note if less than the value is kept."""
    if _is_file(value, folder):
        source = Path(value).resolve()
        try:
            return retry(
                lambda: _copy(name, source, folder), f"copy the returned {name}", COPY_S
            ), None
        except OSError as exc:  # Training is not repeated for a file.
            return str(
                source
            ), f"the returned {name!r} could not be copied and stays at {source}: {exc}"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
        return (
            value,
            f"the returned {name!r} is {value!r}, which does not exist; it is kept as text",
        )
    try:
        # Through JSON and back: an enum of the user's, say, is unknown on the driver.
        kept = json.loads(json.dumps(_as_python(value), default=_nested_as_python))
        if isinstance(kept, int):
            float(kept)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(value), (
            f"the returned {name!r}, of type {type(value).__name__}, is stored as text only: "
            f"{_remedy(name, value)}"
        )
    return kept, _note_on_text(name, kept, folder) if isinstance(kept, str) else None


def _remedy(name: str, value: Any) -> str:
    """Return how the user can keep an object that is no JSON value."""
    for cls in type(value).__mro__:
        if cls.__module__.split(".")[0] in ("keras", "tf_keras"):
            if cls.__name__ == "Model":
                return f"return sparkdl.keras.save(model, '{name}.keras') to keep it as an artifact"
            if cls.__name__ == "History":
                return "return its numbers, such as history.history['loss'][-1]"
    return "return numbers, or save the object to a file and return its path to keep an artifact"


def _note_on_text(name: str, text: str, folder: Path) -> str | None:
    """Return a note about a text that is probably meant as a path, but is not copied."""
    is_url = "://" in text
    if os.path.isdir(text) and os.sep in text and Path(text).resolve() != folder.resolve():
        return (
            f"the returned {name!r} is the path of a folder, which is not copied: return it as a "
            "pathlib.Path"
        )
    is_path = text.startswith(("/", "./", "../", "~")) or _FILE.search(text) is not None
    is_text = is_url or len(text) > 1000 or re.search(r"\s", text)
    if is_path and not is_text and not os.path.exists(text):
        return f"the returned {name!r} is {text!r}, which is no file; it is kept as text"
    return None


def _as_python(value: Any) -> Any:
    """Return arrays and tensors of any framework as numbers and lists of numbers."""
    for method in ("detach", "cpu", "numpy"):  # PyTorch; TensorFlow and JAX have the last one.
        value = getattr(value, method)() if hasattr(value, method) else value
    return value.tolist() if hasattr(value, "tolist") else value


def _nested_as_python(value: Any) -> Any:
    """Return a value inside of a list or dict, for `json.dumps`.

    Raises:
        TypeError: if the value is no array, tensor or number of a framework.
    """
    plain = _as_python(value)
    if plain is value:
        raise TypeError(f"a {type(value).__name__} is no JSON value")
    return plain


def _is_file(value: Any, folder: Path) -> bool:
    """Return True if a value names a file or folder to copy, rather than being mere text."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        return False
    if not os.path.isdir(value):
        return os.path.isfile(value)
    path, trial = Path(value).resolve(), folder.resolve()
    if path == trial or path in trial.parents:
        return False
    if not isinstance(value, str):
        return True
    # Other folders may hold anything, so that they are copied only if they are given as a Path.
    is_own = path.is_relative_to(trial) and os.path.normpath(value) != os.curdir
    return is_own or (path / _SAVED_MODEL).is_file()


def _copy(name: str, source: Path, folder: Path) -> str:
    """Copy a resolved path to the artifacts; return the path of the copy relative to `folder`."""
    folder = folder.resolve()
    if source.is_relative_to(folder):
        return source.relative_to(folder).as_posix()
    target = folder / "artifacts" / quote(name, safe="") / source.name
    storage.make_directory(str(target.parent))
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)
    return target.relative_to(folder).as_posix()
