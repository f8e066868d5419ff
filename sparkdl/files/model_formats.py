"""Runs anywhere. The formats of models: recognise the file or folder of a model, and load a model.

A model is a Keras file (`.keras`, `.h5`), the folder of a SavedModel, or the folder of a model with
a loader, see `inference.loader_model`.
"""

import importlib
import importlib.util
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkdl.files import storage
from sparkdl.files.layout import CHIEF_WORK
from sparkdl.host.optional_packages import require

KERAS_FILES = (".keras", ".h5", ".hdf5")
# The file by which the folder of a SavedModel is recognised.
SAVED_MODEL = "saved_model.pb"
# The file by which the folder of a model with a loader is recognised.
LOADER_FILE = "loader.json"
MODEL_FILES = (SAVED_MODEL, LOADER_FILE)


def is_model_file(name: str) -> bool:
    """Return True if a file with this name is a Keras model, rather than weights alone.

    Example:
        >>> is_model_file("digits.keras"), is_model_file("digits.weights.h5")
        (True, False)
    """
    return name.endswith(KERAS_FILES) and not name.endswith(".weights.h5")


def is_model(url: str) -> bool:
    """Return True if there is a Keras file, or the folder of a model, at `url`."""
    is_file = is_model_file(url) and storage.exists(url)
    return is_file or any(storage.exists(storage.join(url, name)) for name in MODEL_FILES)


def left_models(trial: str) -> list[str]:
    """Return the URLs of the models in the working directory of a trial, or of its chief.

    A folder is looked into unless its name has a suffix: there may be many files.
    """
    left = []
    for folder in (storage.join(trial, name) for name in CHIEF_WORK):
        for name in storage.list_names(folder):
            url = storage.join(folder, name)
            if (is_model_file(name) or not Path(name).suffix) and is_model(url):
                left.append(url)
    return left


def library_of(path: Path) -> str:
    """Return what loads a model: `keras`, `tf_keras`, `tensorflow` (a SavedModel), or `loader`.

    A file of Keras 2 is loaded by `tf_keras` if that package is installed.

    Raises:
        ValueError: if the path is not a model; the message says what was expected.
    """
    if path.is_dir():
        if (path / LOADER_FILE).is_file():
            return "loader"
        if not (path / SAVED_MODEL).is_file():
            contents = ", ".join(sorted(os.listdir(path))[:5]) or "nothing"
            raise ValueError(
                f"the folder has no {SAVED_MODEL}; it contains {contents}. Expected a SavedModel, "
                "or the path of a .keras or .h5 file."
            )
        return "tensorflow"
    if path.name.endswith(".weights.h5"):
        raise ValueError(
            "the file contains only weights. Save the whole model: model.save('m.keras')."
        )
    if path.suffix not in KERAS_FILES:
        raise ValueError("expected a .keras or .h5 file, or the folder of a SavedModel.")
    return "tf_keras" if _version(path).startswith("2.") and _has_tf_keras() else "keras"


def _has_tf_keras() -> bool:
    return importlib.util.find_spec("tf_keras") is not None


def _version(path: Path) -> str:
    """Return the version of Keras that wrote a file, from its metadata."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            return str(json.loads(archive.read("metadata.json"))["keras_version"])
    import h5py  # type: ignore[import-untyped]

    with h5py.File(path) as file:
        version = file.attrs.get("keras_version", "")
    return version.decode() if isinstance(version, bytes) else str(version)


def library_of_object(model: object) -> str | None:
    """Return the library of a Keras model: `keras` or `tf_keras`; None for any other object."""
    for base in type(model).__mro__:
        top = base.__module__.partition(".")[0]
        if base.__name__ == "Model" and top in ("keras", "tf_keras"):
            return top
    return None


def load_keras(
    path: Path,
    library: str,
    custom: Mapping[str, Any] | None = None,
    trusted: bool = False,
    is_compiled: bool = False,
) -> Any:
    """Load a Keras file.

    Args:
        path: path of the file.
        library: `keras` or `tf_keras`.
        custom: the user's own classes and functions, by their names in Keras.
        trusted: allow the file to contain code, such as that of a `Lambda` layer.
        is_compiled: also load the loss, the metrics and the optimizer.

    Raises:
        ValueError: if the file contains code, and is not trusted.
    """
    if not trusted:
        _check_no_code(path)
    if library != "tf_keras":
        require("keras", f"the model {path.name}")
    keras = importlib.import_module(library)
    return keras.models.load_model(
        path, custom_objects=dict(custom or {}), compile=is_compiled, safe_mode=not trusted
    )


def _check_no_code(path: Path) -> None:
    """Validate that an HDF5 file has no code.

    `safe_mode` does not reach the HDF5 files of tf_keras, nor those of Keras before 3.11.3:
    https://nvd.nist.gov/vuln/detail/CVE-2025-9905

    Raises:
        ValueError: if it has.
    """
    import h5py

    if not h5py.is_hdf5(path):
        return
    with h5py.File(path) as file:
        text = file.attrs.get("model_config", "null")
    if _has_code(json.loads(text)):
        raise ValueError(
            f"{path.name} has a Lambda layer with a Python lambda, which runs code when it is "
            "loaded. Build the model in this program and pass the model itself, or replace the "
            "layer by one of Keras or by a registered class."
        )


def _has_code(config: Any) -> bool:
    """Return True if the configuration of a model has a marshalled function.

    Keras 2 marks it by the type of the function, and Keras 3 by the name of its class.
    """
    if isinstance(config, list):
        return any(map(_has_code, config))
    if not isinstance(config, dict):
        return False
    is_code = config.get("class_name") == "__lambda__" or any(
        value == "lambda" and name.endswith("_type") for name, value in config.items()
    )
    return is_code or any(map(_has_code, config.values()))


def load_model(path: Path) -> Any:
    """Load a model for the user: a compiled Keras model, or the object of a SavedModel.

    Raises:
        ValueError: if the path is not a model, or Keras does not know a class of the model.
    """
    library = library_of(path)
    if library == "loader":
        raise ValueError(f"{path} has a loader: call model() of the version, models.get(name).")
    if library == "tensorflow":
        require("tensorflow", f"the SavedModel {path.name}")
        import tensorflow as tf

        return tf.saved_model.load(str(path))
    return load_keras(path, library, is_compiled=True)
