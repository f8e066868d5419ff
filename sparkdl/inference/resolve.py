"""Runs on the driver.

The model that a person means: by its path, in memory, of a run or a trial.
"""

import dataclasses
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkdl import checkpoints, storage
from sparkdl.errors import ConfigError
from sparkdl.inference import custom_objects, loader
from sparkdl.inference.loader import Loaded
from sparkdl.inference.model_file import (
    KERAS_FILES,
    SAVED_MODEL,
    Stored,
    digest_of,
    digest_of_archive,
    fetched,
    library_of,
)
from sparkdl.runs import Run, Trial

__all__ = ["find", "model_of"]


def find(model: Any, signature: str, tags: tuple[str, ...] = ()) -> tuple[Stored, Loaded]:
    """The model as it travels, and as it is here, to see what goes in and comes out.

    Raises:
        ConfigError: there is none, or it cannot be used so.
    """
    if library := loader.library_of_object(model):
        return _in_memory(model, library)
    if isinstance(model, Run):
        model = _trial_of(model)
    if isinstance(model, Trial):
        model = model_of(model)
    if not isinstance(model, str | os.PathLike):
        raise ConfigError(
            f"model is a {type(model).__name__}; expected a path, a Keras model, a Run or a Trial."
        )
    return _at(storage.absolute(model), signature, tags)


def _in_memory(model: Any, library: str) -> tuple[Stored, Loaded]:
    name = f"{model.name!r}"
    try:
        found, own = loader.from_keras(model), custom_objects.custom_objects(model, library)
    except ValueError as exc:
        raise ConfigError(f"{name}: {exc}") from exc
    with tempfile.TemporaryDirectory(prefix="sparkdl-model-") as folder:
        path = Path(folder, "model.keras")
        model.save(path)
        digest, data = digest_of_archive(path), path.read_bytes()
    return Stored(name, library, digest, data=data, custom=custom_objects.pickled(own)), found


def _at(url: str, signature: str, tags: tuple[str, ...]) -> tuple[Stored, Loaded]:
    try:
        with fetched(url) as path:
            library = library_of(path)
            stored = Stored(url, library, digest_of(path), signature, url, tags=tags)
            if library == "tensorflow":
                return stored, loader.from_saved_model(path, signature, tags)
            model = loader.load_keras(path, library)
            own = custom_objects.pickled(custom_objects.custom_objects(model, library))
            return dataclasses.replace(stored, custom=own), loader.from_keras(model)
    except (ValueError, OSError, KeyError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"model {url}: {exc}") from exc


def _trial_of(run: Run) -> Trial:
    """The best trial, or the only one, of a run that has no metric."""
    complete = [trial for trial in run.trials if trial.state == "COMPLETE"]
    return complete[0] if len(complete) == 1 else run.best


def model_of(trial: Trial) -> str:
    """Where a trial's model is: among what its function returned, else in its last checkpoint.

    Raises:
        ConfigError: there is none there, or several.
    """
    returned = dict(_returned(trial))
    if len(returned) > 1 and "model" not in returned:
        raise ConfigError(
            f"trial {trial.number} has returned {len(returned)} models: "
            f"{', '.join(map(repr, returned))}. Pass the path of one of them, such as "
            f"{next(iter(returned.values()))!r}, or call one 'model' in what train returns."
        )
    if returned:
        return returned.get("model") or next(iter(returned.values()))
    newest = checkpoints.newest(trial.path)
    for name in newest.files if newest else ():
        if _is_model_file(name):
            return storage.join(newest.url, name) if newest else ""
    held = f"its last checkpoint {newest.url} holds {', '.join(newest.files)}" if newest else ""
    raise ConfigError(
        f"trial {trial.number} of {trial.path} has no model. What train returned is "
        f"{trial.outputs or 'nothing'}, in which no name leads to a .keras or .h5 file or to the "
        f"folder of a SavedModel; {held or 'it has no checkpoint'}. Weights alone are no model. "
        "Let train return {'model': sparkdl.keras.save(model, 'model.keras')}, or load the "
        "weights into a model and pass that."
    )


def _returned(trial: Trial) -> Iterator[tuple[str, str]]:
    for name, value in trial.outputs.items():
        if not isinstance(value, str):
            continue
        url = storage.join(trial.path, value)
        is_file = _is_model_file(value) and storage.exists(url)
        if is_file or storage.exists(storage.join(url, SAVED_MODEL)):
            yield name, url


def _is_model_file(name: str) -> bool:
    return name.endswith(KERAS_FILES) and not name.endswith(".weights.h5")
