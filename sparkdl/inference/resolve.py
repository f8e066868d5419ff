"""Runs on the driver. Resolve the `model` argument of `predict`, whatever the user passes."""

import dataclasses
import logging
import os
import zipfile
from typing import Any

from sparkdl.errors import ConfigError, named_type
from sparkdl.files import storage
from sparkdl.files.model_formats import LOADER_FILE, library_of, library_of_object, load_keras
from sparkdl.host.optional_packages import require
from sparkdl.host.supported_versions import check_versions
from sparkdl.host.tensorflow_noise import without_noise
from sparkdl.inference import custom_objects, loader
from sparkdl.inference.declared_model import DeclaredModel
from sparkdl.inference.loader import LoadedModel
from sparkdl.inference.loader_model import read_loader_model
from sparkdl.inference.model_file import (
    StoredModel,
    digest_of,
    digest_of_archive,
    local_copy,
    read_files,
    temporary_folder,
)
from sparkdl.inference.torch_files import TORCH_FILES
from sparkdl.inference.torch_objects import is_torch
from sparkdl.runs import Run, Trial, trial_files
from sparkdl.runs.results import returned_model

_logger = logging.getLogger("sparkdl.inference")


def resolve_model(
    model: Any, signature: str, tags: tuple[str, ...] = ()
) -> tuple[StoredModel, LoadedModel | DeclaredModel]:
    """Return the model as executors load it, and as the driver knows its inputs.

    The driver loads a model of TensorFlow; a model with a loader describes itself.

    Args:
        model: a path or URL, a Keras model, a Run, a Trial, or a version of an exported model.
        signature: name of the function of a SavedModel, or of a model with a loader.
        tags: tags of the graph of a SavedModel that has several graphs.

    Raises:
        ConfigError: if the model does not exist or cannot be used, or if TensorFlow or Keras is
            too old.
        MissingPackageError: if TensorFlow is not installed.
    """
    if library := library_of_object(model):
        _check_tensorflow()
        return _in_memory(model, library)
    model = model_of(model)
    if not isinstance(model, str | os.PathLike):
        raise ConfigError(
            f"model is {named_type(model)}; expected a path, a Keras model, a Run, a Trial or "
            "a ModelVersion."
        )
    url = storage.absolute(model)
    if storage.exists(storage.join(url, LOADER_FILE)):
        return _with_loader(url, signature)
    _check_tensorflow()
    return _from_url(url, signature, tags)


def model_of(model: Any) -> Any:
    """Return the model of a run or a trial: its path, or the module of PyTorch that it returned.

    Args:
        model: a run, whose best trial counts, or a trial; anything else is returned unchanged.

    Raises:
        ConfigError: if the trial has no model.
    """
    trial = trial_of(model) if isinstance(model, Run) else model
    if not isinstance(trial, Trial):
        return model
    try:
        return trial.model_path
    except ConfigError:
        returned = returned_model(trial.path)
        if is_torch(returned):
            return returned
        if str(trial.outputs.get("model")).endswith(TORCH_FILES):
            return trial_files.artifact_url(trial.path, trial.outputs, "model")
        raise


def _check_tensorflow() -> None:
    require("tensorflow", "a model of Keras or a SavedModel")
    check_versions("tensorflow", "keras")


def _with_loader(url: str, signature: str) -> tuple[StoredModel, DeclaredModel]:
    model, digest = read_files(url, read_loader_model)
    if signature not in model.functions:
        raise ConfigError(
            f"model {url}: it has no signature {signature!r}; it has {', '.join(model.functions)}."
        )
    function = model.functions[signature]
    stored = StoredModel(
        name=url,
        library="loader",
        digest=digest,
        signature=signature,
        url=url,
        outputs=function.outputs,
        by_name=function.by_name,
    )
    declared = DeclaredModel(function.inputs, function.by_name, function.outputs, takes_text=True)
    return stored, declared


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
            leave_gpus_to_tasks()
            if library == "tensorflow":
                return stored, loader.from_saved_model(path, signature, tags)
            model = load_keras(path, library)
            custom = custom_objects.pickle_objects(custom_objects.custom_objects(model, library))
            return dataclasses.replace(stored, custom=custom), loader.from_keras(model)
    except (ValueError, OSError, KeyError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"model {url}: {exc}") from exc


def leave_gpus_to_tasks() -> None:
    """Hide the GPUs of this process from TensorFlow, unless TensorFlow has started already.

    TensorFlow would otherwise hold nearly all memory of the driver's GPU until the driver ends.

    Raises:
        ConfigError: if TensorFlow or Keras is too old.
    """
    check_versions("tensorflow", "keras")
    with without_noise():
        import tensorflow as tf

        installed = tf.config.list_physical_devices("GPU")
    if not installed or tf.config.get_visible_devices("GPU") != installed:
        return  # There is no GPU, or the user has chosen what TensorFlow sees.
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # TensorFlow has started, and holds the GPUs of this process.
        return
    _logger.info(
        "the GPUs are left to Spark's tasks: TensorFlow in this process now uses the CPU only. To "
        "use a GPU in this process, call tf.config.list_logical_devices() before predict or export"
    )


def trial_of(run: Run) -> Trial:
    """Return the only complete trial of a run, or the best one."""
    complete = [trial for trial in run.trials if trial.state == "COMPLETE"]
    return complete[0] if len(complete) == 1 else run.best
