"""Runs in a Spark task. Load models, and cache them in the Python worker."""

import importlib
import pickle
from collections import OrderedDict
from typing import Any

from sparkdl.files.model_formats import load_keras
from sparkdl.host.optional_packages import require
from sparkdl.host.tensorflow_noise import without_noise
from sparkdl.inference import loader
from sparkdl.inference.function_model import load_function
from sparkdl.inference.loader_task import load_stored
from sparkdl.inference.model_file import StoredModel
from sparkdl.inference.task_environment import TaskEnvironment
from sparkdl.inference.tensor_spec import TensorSpec
from sparkdl.inference.torch_model import load_torch
from sparkdl.inference.traced_model import TracedModel

# Models cached per Python worker. Spark may send a worker tasks that use different models; the
# least recently used one is evicted.
MAX_MODELS = 3

_CACHE: OrderedDict[tuple[Any, ...], TracedModel] = OrderedDict()


def cached_model(
    stored: StoredModel, inputs: tuple[TensorSpec, ...], detect_gpus: bool
) -> TracedModel:
    """Return a model in memory.

    The model is loaded at the first call with these arguments, and after it was evicted.

    Args:
        stored: the model.
        inputs: the inputs of the model with known shapes and dtypes.
        detect_gpus: use a GPU of this host if Spark assigned none to the task.
    """
    key = (*stored.key, inputs)
    if key not in _CACHE:
        while len(_CACHE) >= MAX_MODELS:
            _CACHE.popitem(last=False)
        _CACHE[key] = _load(stored, inputs, detect_gpus)
    _CACHE.move_to_end(key)
    return _CACHE[key]


def _load(stored: StoredModel, inputs: tuple[TensorSpec, ...], detect_gpus: bool) -> TracedModel:
    if stored.library == "function":
        return load_function(stored, inputs, TaskEnvironment(detect_gpus))
    if stored.library == "loader":
        return load_stored(stored, TaskEnvironment(detect_gpus))
    if stored.library.startswith("torch"):
        return load_torch(stored, inputs, detect_gpus)
    start_framework(stored.library, detect_gpus)
    with stored.open_local() as path:
        if stored.library == "tensorflow":
            loaded = loader.from_saved_model(path, stored.signature, stored.tags)
            if any(spec.ragged for spec in inputs):
                loaded = loader.with_ragged_inputs(loaded)
        else:
            custom = pickle.loads(stored.custom) if stored.custom else {}
            # Either the driver sent this model, or it has loaded the same file in safe mode.
            keras_model = load_keras(path, stored.library, custom, trusted=True)
            loaded = loader.from_keras(keras_model)
    return loaded.trace(inputs)


def start_framework(library: str, detect_gpus: bool) -> None:
    """Start TensorFlow with the GPUs and cores of this task, see `TaskEnvironment`.

    Args:
        library: `keras`, `tf_keras` or `tensorflow`.
        detect_gpus: use a GPU of this host if Spark assigned none to the task.

    Raises:
        ValueError: if Spark assigned a GPU that is not visible to this executor.
    """
    require("tensorflow", "the model")
    environment = TaskEnvironment(detect_gpus, {"KERAS_BACKEND": "tensorflow"})
    with environment, without_noise():
        import tensorflow as tf

        importlib.import_module(library)
        tf.config.list_logical_devices()
