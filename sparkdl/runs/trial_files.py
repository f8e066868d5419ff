"""Runs on the driver. Find the files that a trial has left, and copy them to a local folder."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard

from sparkdl.checkpoints import Checkpoint
from sparkdl.errors import ConfigError, suggest
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.model_formats import is_model, is_model_file, left_models

# A longer text among the outputs of a trial is no path, and one with a longer part in bytes.
MAX_PATH, MAX_NAME = 1000, 255


def model_url(
    trial: str, outputs: Mapping[str, Any], checkpoint: Callable[[], Checkpoint | None]
) -> str:
    """Return the URL of a trial's model.

    The model is among the outputs of the trial or, if the outputs contain none, in a checkpoint, or
    what the function has left in its working directory.

    Args:
        trial: the folder of the trial.
        outputs: the values that the training function returned, by name.
        checkpoint: returns the checkpoint of the trial's value; called if it is needed.

    Raises:
        ConfigError: if the trial has no model, or several of which none is named `model`.
    """
    returned = dict(_models(trial, outputs))
    name = f"trial {trial.rsplit('/', 1)[-1]} of {trial}"
    if len(returned) > 1 and "model" not in returned:
        raise ConfigError(
            f"{name} returned {len(returned)} models: "
            f"{', '.join(map(repr, returned))}. Pass the path of one of them, such as "
            f"{next(iter(returned.values()))!r}, or return one of them under the key 'model'."
        )
    if returned:
        return returned.get("model") or next(iter(returned.values()))
    newest = checkpoint()
    for file in newest.files if newest else ():
        if is_model_file(file):
            return storage.join(newest.url, file) if newest else ""
    # A value that is kept as a whole may be, or contain, the model: it is not one that was left.
    left = [] if storage.exists(TrialPaths(trial).result) else left_models(trial)
    if len(left) > 1:
        raise ConfigError(
            f"{name} returned no model, and left {len(left)} of them: {', '.join(left)}. Pass the "
            "path of one of them, or return one from train: {'model': 'model.keras'}."
        )
    if left:
        return left[0]
    if newest:
        text = f"its checkpoint {newest.url} contains {', '.join(newest.files)}"
    else:
        text = "the trial has no checkpoint"
    raise ConfigError(
        f"{name} has no model. Its outputs are {dict(outputs) or 'empty'}, without a "
        "path of a .keras or .h5 file or of the folder of a "
        f"SavedModel; {text}. A file that contains only weights is not a model. "
        "Return {'model': sparkdl.keras.save(model, 'model.keras')} from train, or load the "
        "weights into a model and pass that model."
    )


def _models(trial: str, outputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the URL of each model among the outputs of a trial."""
    for name, value in outputs.items():
        if is_path(value) and is_model(url := storage.join(trial, value)):
            yield name, url


def artifact_url(trial: str, outputs: Mapping[str, Any], name: str) -> str:
    """Return the URL of a file or folder that the training function returned.

    Args:
        trial: the folder of the trial.
        outputs: the values that the training function returned, by name.
        name: the name under which the file was returned.

    Raises:
        ConfigError: if the function returned no such file.
    """
    value = outputs.get(name)
    if _is_file(trial, value):
        return storage.join(trial, str(value))
    paths = [other for other, output in outputs.items() if _is_file(trial, output)]
    text = f"it is {value!r}" if name in outputs else "no value has this name"
    raise ConfigError(
        f"the trial {trial} has no artifact {name!r}: {text}. Expected the name of a returned "
        f"file: {', '.join(map(repr, paths)) or 'the trial returned none'}.{suggest(name, paths)}"
    )


def _is_file(trial: str, output: Any) -> bool:
    return is_path(output) and storage.exists(storage.join(trial, output))


def is_path(output: Any) -> TypeGuard[str]:
    """Return True if an output may be a path below the trial's folder.

    Disks and stores refuse longer names.
    """
    if not isinstance(output, str) or not output or len(output) > MAX_PATH:
        return False
    parts = output.split("/")
    is_below = parts[0] != "" and ".." not in parts
    return is_below and all(len(part.encode(errors="replace")) <= MAX_NAME for part in parts)


def local_copy(url: str, to: str | PathLike[str] | None = None) -> str:
    """Return the local path of a file or folder, and copy it there unless it is local already.

    Args:
        url: the file or folder.
        to: the folder that receives the copy. By default, a local file is not copied, and a remote
            file goes to a temporary folder, which is removed when this process ends.
    """
    if to is None and storage.is_local(url):
        return str(storage.local_path(url).absolute())
    if to is None:
        to = tempfile.mkdtemp(prefix="sparkdl-copy-")
        atexit.register(shutil.rmtree, to, ignore_errors=True)
    target = Path(to, url.rstrip("/").rsplit("/", 1)[-1]).absolute()
    storage.download(url, target)
    return str(target)
