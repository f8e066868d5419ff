"""Runs in a Spark task. Load models, and cache them in the Python worker."""

import importlib
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pyspark import TaskContext

from sparkdl.cuda_visibility import as_seen_by_executor, visible_devices
from sparkdl.devices import gpus
from sparkdl.inference import loader
from sparkdl.inference.model_file import StoredModel
from sparkdl.inference.tensor_spec import TensorSpec, fit_rows
from sparkdl.model_formats import load_keras
from sparkdl.tensorflow_noise import without_noise

__all__ = ["Model", "cached_model", "start_framework"]

# Models cached per Python worker. Spark may send a worker tasks that use different models; the
# least recently used one is evicted.
MAX_MODELS = 3

# TensorFlow reads these variables when it creates its threads (process_util.cc).
_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")

Array = Any  # np.ndarray of numbers, or of strings as objects.
Model = Callable[[Sequence[Array]], dict[str, Array]]

_CACHE: OrderedDict[tuple[Any, ...], Model] = OrderedDict()


def cached_model(stored: StoredModel, inputs: tuple[TensorSpec, ...], detect_gpus: bool) -> Model:
    """Return a function from arrays, one per input, to the arrays of the outputs, by name.

    The model is loaded at the first call with these arguments, and after it was evicted.

    Args:
        stored: the model.
        inputs: the inputs of the model with known shapes and dtypes.
        detect_gpus: use the GPUs of this host if Spark assigned none to the task.
    """
    key = (*stored.key, inputs)
    if key not in _CACHE:
        while len(_CACHE) >= MAX_MODELS:
            _CACHE.popitem(last=False)
        start_framework(stored.library, detect_gpus)
        _CACHE[key] = _load(stored, inputs)
    _CACHE.move_to_end(key)
    return _CACHE[key]


def _load(stored: StoredModel, inputs: tuple[TensorSpec, ...]) -> Model:
    import tensorflow as tf

    with stored.open_local() as path:
        if stored.library == "tensorflow":
            loaded = loader.from_saved_model(path, stored.signature, stored.tags)
        else:
            custom = pickle.loads(stored.custom) if stored.custom else {}
            # Either the driver sent this model, or it has loaded the same file in safe mode.
            keras_model = load_keras(path, stored.library, custom, trusted=True)
            loaded = loader.from_keras(keras_model)
    traced = loaded.trace(inputs)
    dtypes = [tf.as_dtype(spec.dtype) for spec in inputs]

    def call(arrays: Sequence[Array]) -> dict[str, Array]:
        tensors = [
            tf.convert_to_tensor(fit_rows(array, spec, dtype.as_numpy_dtype), dtype)
            for array, spec, dtype in zip(arrays, inputs, dtypes, strict=True)
        ]
        computed = zip(traced.outputs, traced.function(*tensors), strict=True)
        outputs = {spec.name: np.asarray(output) for spec, output in computed}
        for name, output in outputs.items():
            if len(output) != len(arrays[0]):
                raise RuntimeError(
                    f"the model's output {name!r} has {len(output)} rows for {len(arrays[0])} "
                    "rows of input; expected one row of output for each row of input."
                )
        return outputs

    return call


def start_framework(library: str, detect_gpus: bool) -> None:
    """Start TensorFlow with the GPUs and cores of this task, then restore the environment.

    Spark reuses a Python worker for later tasks, which must not inherit the GPUs of this task. If
    TensorFlow was started before in this worker, it keeps its GPUs.

    Args:
        library: `keras`, `tf_keras` or `tensorflow`.
        detect_gpus: use a GPU of this host if Spark assigned none to the task. The GPUs are shared
            equally among the tasks, by the numbers of their partitions.

    Raises:
        ValueError: if Spark assigned a GPU that is not visible to this executor.
    """
    context = TaskContext.get()
    environment = dict(os.environ)
    resources = context.resources() if context else {}
    addresses = resources["gpu"].addresses if "gpu" in resources else ()
    assigned = as_seen_by_executor(addresses, environment.get("CUDA_VISIBLE_DEVICES"))
    if context and not assigned and detect_gpus and (devices := gpus()):
        # A model uses one GPU. If all tasks saw all GPUs, all models would use the first one.
        assigned = [devices[context.partitionId() % len(devices)]]
    for name in _THREADS:
        os.environ.setdefault(name, str(context.cpus() if context else 1))
    # Other workers may share the GPU.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.update(visible_devices(assigned, detect_gpus))
    try:
        with without_noise():
            import tensorflow as tf

            importlib.import_module(library)
            tf.config.list_logical_devices()
    finally:
        os.environ.clear()
        os.environ.update(environment)
