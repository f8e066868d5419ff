"""Runs on the driver. Resolve the `model` argument: a path, a Keras model, a run or a trial."""

import dataclasses
import logging
import os
import zipfile
from collections.abc import Iterator
from typing import Any

from sparkdl import storage
from sparkdl.errors import ConfigError
from sparkdl.inference import custom_objects, loader
from sparkdl.inference.loader import LoadedModel
from sparkdl.inference.model_file import (
    KERAS_FILES,
    SAVED_MODEL,
    StoredModel,
    digest_of,
    digest_of_archive,
    library_of,
    local_copy,
    temporary_folder,
)
from sparkdl.runs import Run, Trial

__all__ = ["model_url_of", "resolve_model"]

_logger = logging.getLogger("sparkdl.inference")


def resolve_model(
    model: Any, signature: str, tags: tuple[str, ...] = ()
) -> tuple[StoredModel, LoadedModel]:
    """Return the model as executors load it, and loaded on the driver to check its inputs.

    Args:
        model: a path or URL, a Keras model, a Run or a Trial.
        signature: name of the function of a SavedModel.
        tags: tags of the graph of a SavedModel that has several graphs.

    Raises:
        ConfigError: if the model does not exist or cannot be used.
    """
    if library := loader.library_of_object(model):
        return _in_memory(model, library)
    if isinstance(model, Run):
        model = _trial_of(model)
    if isinstance(model, Trial):
        model = model_url_of(model)
    if not isinstance(model, str | os.PathLike):
        raise ConfigError(
            f"model is a {type(model).__name__}; expected a path, a Keras model, a Run or a Trial."
        )
    return _from_url(storage.absolute(model), signature, tags)


def _in_memory(model: Any, library: str) -> tuple[StoredModel, LoadedModel]:
    name = f"{model.name!r}"
    try:
        loaded = loader.from_keras(model)
        objects = custom_objects.custom_objects(model, library)
    except ValueError as exc:
        raise ConfigError(f"{name}: {exc}") from exc
    with temporary_folder() as folder:
        path = folder / "model.keras"
        model.save(path)
        digest, data = digest_of_archive(path), path.read_bytes()
    custom = custom_objects.pickle_objects(objects)
    stored = StoredModel(name=name, library=library, digest=digest, data=data, custom=custom)
    return stored, loaded


def _from_url(url: str, signature: str, tags: tuple[str, ...]) -> tuple[StoredModel, LoadedModel]:
    try:
        with local_copy(url) as path:
            library = library_of(path)
            stored = StoredModel(
                name=url,
                library=library,
                digest=digest_of(path),
                signature=signature,
                url=url,
                tags=tags,
            )
            _leave_gpus_to_tasks()
            if library == "tensorflow":
                return stored, loader.from_saved_model(path, signature, tags)
            model = loader.load_keras(path, library)
            custom = custom_objects.pickle_objects(custom_objects.custom_objects(model, library))
            return dataclasses.replace(stored, custom=custom), loader.from_keras(model)
    except (ValueError, OSError, KeyError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"model {url}: {exc}") from exc


def _leave_gpus_to_tasks() -> None:
    """Hide the GPUs of this process from TensorFlow, unless TensorFlow has started already.

    TensorFlow would otherwise hold nearly all memory of the driver's GPU until the driver ends.
    """
    import tensorflow as tf

    installed = tf.config.list_physical_devices("GPU")
    if not installed or tf.config.get_visible_devices("GPU") != installed:
        return  # There is no GPU, or the user has chosen what TensorFlow sees.
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # TensorFlow has started, and holds the GPUs of this process.
        return
    _logger.info(
        "predict leaves the GPUs to Spark's tasks: TensorFlow in this process now uses the CPU "
        "only. To use a GPU in this process, call tf.config.list_logical_devices() before predict"
    )


def _trial_of(run: Run) -> Trial:
    """Return the only complete trial of a run, or the best one."""
    complete = [trial for trial in run.trials if trial.state == "COMPLETE"]
    return complete[0] if len(complete) == 1 else run.best


def model_url_of(trial: Trial) -> str:
    """Return the URL of a trial's model.

    The model is among the outputs of the trial or, if the outputs contain none, in the checkpoint
    of its value, see `Trial.checkpoint`.

    Raises:
        ConfigError: if the trial has no model, or its outputs contain several.
    """
    returned = dict(_models_in_outputs(trial))
    if len(returned) > 1 and "model" not in returned:
        raise ConfigError(
            f"trial {trial.number} returned {len(returned)} models: "
            f"{', '.join(map(repr, returned))}. Pass the path of one of them, such as "
            f"{next(iter(returned.values()))!r}, or return one of them under the key 'model'."
        )
    if returned:
        return returned.get("model") or next(iter(returned.values()))
    chosen = trial.checkpoint_of_value()
    for name in chosen.files if chosen else ():
        if _is_model_file(name):
            return storage.join(chosen.url, name) if chosen else ""
    if chosen:
        checkpoint = f"its checkpoint {chosen.url} contains {', '.join(chosen.files)}"
    else:
        checkpoint = "the trial has no checkpoint"
    raise ConfigError(
        f"trial {trial.number} of {trial.path} has no model. Its outputs are "
        f"{trial.outputs or 'empty'}, without a path of a .keras or .h5 file or of the folder of a "
        f"SavedModel; {checkpoint}. A file that contains only weights is not a model. "
        "Return {'model': sparkdl.keras.save(model, 'model.keras')} from train, or load the "
        "weights into a model and pass that model."
    )


def _models_in_outputs(trial: Trial) -> Iterator[tuple[str, str]]:
    """Yield the name and the URL of each model among the outputs of a trial."""
    for name, value in trial.outputs.items():
        if not isinstance(value, str):
            continue
        url = storage.join(trial.path, value)
        is_file = _is_model_file(value) and storage.exists(url)
        if is_file or storage.exists(storage.join(url, SAVED_MODEL)):
            yield name, url


def _is_model_file(name: str) -> bool:
    return name.endswith(KERAS_FILES) and not name.endswith(".weights.h5")
