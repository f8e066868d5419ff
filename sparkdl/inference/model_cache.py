"""Runs in a Spark task. The models that this Python worker has loaded, each once."""

import importlib
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pyspark import TaskContext

from sparkdl.cuda_visibility import as_seen_by_executor, visible_devices
from sparkdl.inference import loader
from sparkdl.inference.model_file import Stored
from sparkdl.inference.tensor_spec import Tensor, fitted

__all__ = ["Model", "model", "start_framework"]

# Of more than one model where a DataFrame has gone through several: Spark gives a task of one any
# of the workers. The longest unused makes room.
MODELS = 3

# TensorFlow reads them when it makes its threads (process_util.cc).
_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")

Array = Any  # np.ndarray of numbers, or of strings as objects.
Model = Callable[[Sequence[Array]], dict[str, Array]]


_LOADED: OrderedDict[tuple[Any, ...], Model] = OrderedDict()


def model(stored: Stored, inputs: tuple[Tensor, ...], detect_gpus: bool) -> Model:
    """A model as a function of arrays, one an input, to those of its outputs, by their names.

    It is loaded at the first call with these arguments, and after others have made it go.

    Args:
        stored: which model.
        inputs: what goes in, all shapes and dtypes known.
        detect_gpus: where Spark assigned none, use the GPUs that this host has.
    """
    key = (*stored.key, inputs)
    if key not in _LOADED:
        while len(_LOADED) >= MODELS:
            _LOADED.popitem(last=False)
        start_framework(stored.library, detect_gpus)
        _LOADED[key] = _load(stored, inputs)
    _LOADED.move_to_end(key)
    return _LOADED[key]


def _load(stored: Stored, inputs: tuple[Tensor, ...]) -> Model:
    import tensorflow as tf

    with stored.opened() as path:
        if stored.library == "tensorflow":
            found = loader.from_saved_model(path, stored.signature, stored.tags)
        else:
            custom = pickle.loads(stored.custom) if stored.custom else {}
            # The driver's Keras has accepted the very same file.
            keras = loader.load_keras(path, stored.library, custom, trusted=True)
            found = loader.from_keras(keras)
    traced = found.trace(inputs)
    dtypes = [tf.as_dtype(tensor.dtype) for tensor in inputs]

    def call(arrays: Sequence[Array]) -> dict[str, Array]:
        ready = [
            tf.convert_to_tensor(fitted(array, tensor, dtype.as_numpy_dtype), dtype)
            for array, tensor, dtype in zip(arrays, inputs, dtypes, strict=True)
        ]
        computed = zip(traced.outputs, traced.function(*ready), strict=True)
        outputs = {tensor.name: np.asarray(output) for tensor, output in computed}
        for name, output in outputs.items():
            if len(output) != len(arrays[0]):
                raise ValueError(
                    f"the model's output {name!r} has {len(output)} rows for {len(arrays[0])} "
                    "rows of input; expected one for each."
                )
        return outputs

    return call


def start_framework(library: str, detect_gpus: bool) -> None:
    """Let TensorFlow start with this task's GPUs and cores, and leave the environment as it was.

    Spark uses its Python workers again, for tasks that must not inherit this one's GPUs. A worker
    whose TensorFlow has started before keeps the GPUs that it has.

    Raises:
        ValueError: Spark assigned a GPU that this executor may not see.
    """
    context = TaskContext.get()
    before = dict(os.environ)
    resources = context.resources() if context else {}
    addresses = resources["gpu"].addresses if "gpu" in resources else ()
    assigned = as_seen_by_executor(addresses, before.get("CUDA_VISIBLE_DEVICES"))
    for name in _THREADS:
        os.environ.setdefault(name, str(context.cpus() if context else 1))
    # Other workers may use the same GPU.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.update(visible_devices(assigned, detect_gpus))
    try:
        import tensorflow as tf

        importlib.import_module(library)
        tf.config.list_logical_devices()
    finally:
        os.environ.clear()
        os.environ.update(before)
