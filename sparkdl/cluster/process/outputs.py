"""Runs in the training process. Turn what a training function returned into outputs for JSON."""

import contextlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkdl import checkpoints
from sparkdl.errors import named_type
from sparkdl.files import storage
from sparkdl.files.layout import ARTIFACTS, EXACT, RESULT, WORK
from sparkdl.files.model_formats import is_model, left_models
from sparkdl.files.polling import retry
from sparkdl.files.returned_values import KeptValue, keep, unmasked
from sparkdl.files.typed_json import encoded, is_plain

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
        shape: `dict`, `list` for a value of each metric, `value` for a single value, or `exact` if
            the values do not tell all, and the whole is in the file `result.json` of the trial.
        notes: a remark about each value of which less is kept than the user may expect.
    """

    values: dict[str, Any] = field(default_factory=dict)
    shape: str = "value"
    notes: list[str] = field(default_factory=list)


def collect_outputs(
    returned: Any,
    metrics: Sequence[str | None],
    folder: str | Path,
    mask: Callable[[str, str], str] = unmasked,
) -> Outputs:
    """Return the value of a training function as JSON values; copy its files to the trial.

    A value of which JSON values do not tell all, such as a tuple, an array or a model, is written
    to the folder of the trial too, see `returned_values`.

    A single number is stored under the name of the metric, or under `value`; a tuple of as many
    numbers as there are metrics under the names of these. The path of a file or of a SavedModel,
    and a `Path` of any folder, is replaced by the path of the copy, relative to `folder`. Files
    and folders inside `folder`, such as those in the working directory of the trial, are not
    copied: their paths become relative to `folder`.

    Args:
        returned: the value that the function returned.
        metrics: the names of the metrics; `[None]` where the user named none.
        folder: the folder of the trial.
        mask: returns a text, given its name, with credentials masked.

    Example:
        >>> collect_outputs(0.9, ["accuracy"], ".").values
        {'accuracy': 0.9}
        >>> collect_outputs([0.9, 5], ["accuracy", "latency"], ".").values
        {'accuracy': 0.9, 'latency': 5}
        >>> collect_outputs({"accuracy": 0.9, "model": "nothere.keras"}, ["accuracy"], ".").notes
        ["the returned 'model' is 'nothere.keras', which is no file; it is kept as text"]
    """
    outputs = Outputs()
    if returned is None:
        return outputs
    whole = returned
    if isinstance(returned, Mapping):
        outputs.shape = "dict"
    else:
        several = len(metrics) > 1 and isinstance(returned, tuple | list)
        outputs.shape = "list" if several else "value"
        values = returned if several else [returned]
        returned = {name or "value": value for name, value in zip(metrics, values, strict=False)}
    typed = []
    for name, value in returned.items():
        kept, note = _output(str(name), value, Path(folder), mask)
        typed.append(kept.typed)
        notes = [*kept.notes, *([note] if note else [])]
        with contextlib.suppress(TypeError):
            outputs.values[str(name)] = json.loads(json.dumps(kept.plain()))
        outputs.notes += notes
        for each in notes:
            _logger.warning("%s.", each)
    _write_exact(outputs, _typed_whole(whole, outputs.shape, typed, outputs.notes), Path(folder))
    return outputs


def note_of_left_models(outputs: Outputs, folder: str) -> list[str]:
    """Return a note if a function has left models, and neither returned nor committed one.

    Args:
        outputs: what the function returned.
        folder: the folder of the trial.
    """
    texts = (value for value in outputs.values.values() if isinstance(value, str))
    kept = [text for text in texts if text.startswith((f"{ARTIFACTS}/", WORK))]
    left = [url.rsplit("/", 1)[-1] for url in left_models(folder)]
    if not left or outputs.shape == EXACT or any(is_model(f"{folder}/{text}") for text in kept):
        return []
    if checkpoints.newest(folder):
        return []  # `Trial.model` looks there first.
    if len(left) == 1:
        return [f"{left[0]} was saved and not returned; trial.model() loads it all the same"]
    return [f"{', '.join(left)} were saved, and none was returned: return the path of the model"]


def save_with_the_chief(returned: Any) -> None:
    """Save the Keras models among the values of another rank than the chief, and drop the files.

    The ranks of a strategy of TensorFlow read some variables together, so that the chief would
    wait for them when it saves its model.
    """
    with tempfile.TemporaryDirectory() as folder:
        keep(returned, "value", Path(folder), libraries=("keras",))


def _typed_whole(returned: Any, shape: str, parts: list[Any], notes: list[str]) -> Any:
    """Return the typed JSON of a whole value from that of its parts."""
    if shape == "value":
        return parts[0]
    if shape == "dict":
        pairs = []
        for key, part in zip(returned, parts, strict=True):
            try:
                pairs.append([encoded(key), part])
            except TypeError:
                remedy = f"its key {key!r} is {named_type(key)}; use text or numbers as keys"
                notes.append(f"the returned dict is not kept: {remedy}")
                return {"lost": ["value", type(returned).__name__, remedy]}
        return {"dict": pairs}
    return {"tuple" if isinstance(returned, tuple) else "list": parts}


def _write_exact(outputs: Outputs, typed_value: Any, folder: Path) -> None:
    """Write the whole value into the folder of the trial, if the outputs do not tell all of it."""
    if is_plain(typed_value):
        return
    outputs.shape = EXACT

    def write() -> None:
        storage.make_directory(str(folder))
        (folder / RESULT).write_text(json.dumps(typed_value))

    try:
        retry(write, "write the returned value", COPY_S)
    except OSError as exc:  # Training is not repeated for a file.
        outputs.notes.append(f"the returned value could not be written: {exc}")


def _output(
    name: str, value: Any, folder: Path, mask: Callable[[str, str], str]
) -> tuple[KeptValue, str | None]:
    """Return the form in which a value is kept, and a note if it is a path that is not."""
    if _is_file(value, folder):
        source = Path(value).resolve()
        try:
            copied = retry(lambda: _copy(name, source, folder), f"copy the returned {name}", COPY_S)
            return KeptValue(copied), None
        except OSError as exc:  # Training is not repeated for a file.
            note = f"the returned {name!r} could not be copied and stays at {source}: {exc}"
            return KeptValue(str(source)), note
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        note = f"the returned {name!r} is {path!r}, which does not exist; it is kept as text"
        return KeptValue(mask(name, path)), note
    kept = keep(value, name, folder, mask)
    text = kept.typed
    return kept, _note_on_text(name, text, folder) if isinstance(text, str) else None


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
    target = folder / ARTIFACTS / quote(name, safe="") / source.name
    storage.make_directory(str(target.parent))
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)
    return target.relative_to(folder).as_posix()
