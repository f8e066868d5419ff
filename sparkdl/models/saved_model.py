"""Runs anywhere. Write Keras models as SavedModels, and read the signatures of SavedModels."""

import contextlib
import functools
import io
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.files.model_formats import SAVED_MODEL
from sparkdl.inference.loader import LoadedModel, from_keras
from sparkdl.inference.tensor_spec import TensorSpec

# The name of the function that TensorFlow Serving calls.
SERVING = "serving_default"

# The names that Keras 3 gives to inputs without a name. The number is counted per process.
_UNNAMED = re.compile(r"(keras_tensor|input_layer|input)(_\d+)?")
_DTYPES = {"half": "float16", "float": "float32", "double": "float64"}


def write_keras(
    model: Any, library: str, folder: str, signature: Any = None, onnx: str | None = None
) -> None:
    """Write a Keras model as a SavedModel with one function of any number of rows.

    The inputs of the function have the names of the model's inputs. A single input without a name
    is called `inputs`, and several are called `input_1`, `input_2` and so on.

    Args:
        model: the model.
        library: the library of the model: `keras` or `tf_keras`.
        folder: the local folder of the SavedModel.
        signature: the inputs, if the model does not define them or their names should differ: a
            `tf.TensorSpec` or a batch of rows, or a dict of these by name, or a list.
        onnx: the path of a file in the format ONNX with the same function; None writes none.

    Raises:
        ConfigError: if the inputs are unknown, or `signature` does not fit the model.
    """
    import tensorflow as tf

    _check_backend(library)
    described = _specs_of(signature)
    loaded = _load(model, signature, described)
    inputs = _inputs(loaded, described)

    def serve(*tensors: Any) -> dict[str, Any]:
        names, results = loaded.flatten(loaded.function(*tensors))
        return dict(zip(names, results, strict=True))

    specs = [
        tf.TensorSpec([None, *(i.shape or ())], i.dtype or "float32", name=i.name) for i in inputs
    ]
    function = write_saved_model(model, library, folder, specs, serve)
    if onnx:
        import tf2onnx

        tf2onnx.convert.from_function(function, specs, output_path=onnx)


def _check_backend(library: str) -> None:
    import keras

    if library == "keras" and keras.backend.backend() != "tensorflow":
        raise ConfigError(
            f"Keras runs with the backend {keras.backend.backend()!r} in this process, and a "
            "SavedModel is written by TensorFlow. Save the model with model.save('m.keras'), and "
            "export that path in a process with KERAS_BACKEND=tensorflow."
        )


def write_saved_model(
    model: Any,
    library: str,
    folder: str,
    specs: Sequence[Any],
    serve: Callable[..., Mapping[str, Any]],
) -> Any:
    """Write a SavedModel with the function `serving_default`, and return it as a `tf.function`.

    Args:
        model: the Keras model whose variables the function uses.
        library: the library of the model: `keras` or `tf_keras`.
        folder: the local folder of the SavedModel.
        specs: a `tf.TensorSpec` with a name for each argument of the function.
        serve: the function; it returns tensors by name.
    """
    import tensorflow as tf

    function = tf.function(serve, autograph=False)
    concrete = function.get_concrete_function(*specs)
    if library == "tf_keras":
        with _without_remarks():
            tf.saved_model.save(model, folder, signatures={SERVING: concrete})
        return function
    import keras

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(SERVING, function)
    # Keras prints to the standard output of the command line, up to 3.8 even if it is told not to.
    with _without_remarks(), contextlib.redirect_stdout(io.StringIO()):
        archive.write_out(folder)
    return function


@contextlib.contextmanager
def _without_remarks() -> Iterator[None]:
    """Keep TensorFlow from logging the folder of a SavedModel, which is renamed afterwards."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


# ---- the inputs


def _specs_of(signature: Any) -> list[TensorSpec]:
    """Return the inputs that the user has described; without a name, the name is empty."""
    if signature is None:
        return []
    if isinstance(signature, Mapping):
        return [_spec_of(value, str(name)) for name, value in signature.items()]
    is_several = isinstance(signature, list | tuple) and not hasattr(signature, "shape")
    return [_spec_of(value, "") for value in (signature if is_several else [signature])]


def _spec_of(value: Any, name: str) -> TensorSpec:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None or not len(shape):
        raise ConfigError(
            f"signature contains {value!r}; expected a tf.TensorSpec, such as "
            "tf.TensorSpec([None, 64], 'float32'), or an array with a batch of rows, or a dict of "
            "these by name of the input."
        )
    name = name or getattr(value, "name", None) or ""
    return TensorSpec(name, tuple(shape)[1:], str(getattr(dtype, "name", dtype)))


def _load(model: Any, signature: Any, described: Sequence[TensorSpec]) -> LoadedModel:
    """Return the model as a function; call it once on zeros if it was never called."""
    try:
        return from_keras(model)
    except ValueError as exc:
        if not described:
            raise ConfigError(
                f"{exc} Or describe the inputs: signature=tf.TensorSpec([None, 64], 'float32')."
            ) from exc
    import tensorflow as tf

    zeros = [tf.zeros([1, *(n or 1 for n in spec.shape or ())], spec.dtype) for spec in described]
    if isinstance(signature, Mapping) and type(model).__name__ != "Sequential":
        model(dict(zip(signature, zeros, strict=True)))
    else:
        model(zeros if len(zeros) > 1 else zeros[0])
    return from_keras(model)


def _inputs(loaded: LoadedModel, described: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the inputs of the serving function, in the order of the model's inputs."""
    inputs = list(loaded.inputs)
    if not loaded.by_name:
        names = _stable_names([spec.name for spec in inputs])
        inputs = [replace(spec, name=name) for spec, name in zip(inputs, names, strict=True)]
    if not described:
        return inputs
    by_name = {spec.name: spec for spec in described}
    if loaded.by_name and by_name.keys() == {spec.name for spec in inputs}:
        return [by_name[spec.name] for spec in inputs]
    if not loaded.by_name and len(described) == len(inputs):
        pairs = zip(described, inputs, strict=True)
        return [replace(spec, name=spec.name or own.name) for spec, own in pairs]
    raise ConfigError(
        f"signature describes {', '.join(map(str, described))}; the model has "
        f"{', '.join(map(str, inputs))}."
    )


def _stable_names(names: Sequence[str]) -> list[str]:
    """Return names that do not depend on how many models the process has made.

    Example:
        >>> _stable_names(["keras_tensor_7"]), _stable_names(["image", "input_layer_2"])
        (['inputs'], ['image', 'input_2'])
    """
    if len(names) == 1 and _UNNAMED.fullmatch(names[0]):
        return ["inputs"]
    return [
        f"input_{number}" if _UNNAMED.fullmatch(name) else name
        for number, name in enumerate(names, start=1)
    ]


# ---- signatures


def read_signatures(folder: Path) -> dict[str, Any]:
    """Return the functions of a SavedModel, with the dtype and the shape of inputs and outputs.

    TensorFlow is not imported.

    Raises:
        ValueError: if the file cannot be read.
    """
    from google.protobuf.message import DecodeError

    try:
        saved = saved_model_class().FromString((folder / SAVED_MODEL).read_bytes())
    except DecodeError as exc:
        raise ValueError(f"{folder / SAVED_MODEL} is no SavedModel: {exc}") from exc
    return {
        name: {
            "inputs": {key: _tensor(info) for key, info in sorted(definition.inputs.items())},
            "outputs": {key: _tensor(info) for key, info in sorted(definition.outputs.items())},
        }
        for graph in saved.meta_graphs
        for name, definition in sorted(graph.signature_def.items())
        if not name.startswith("__")
    }


def _tensor(info: Any) -> dict[str, Any]:
    from tensorboard.compat.proto import types_pb2

    dtype = types_pb2.DataType.Name(info.dtype).removeprefix("DT_").lower()
    sizes = [None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim]
    shape = None if info.tensor_shape.unknown_rank else sizes
    return {"dtype": _DTYPES.get(dtype, dtype), "shape": shape}


@functools.cache
def saved_model_class() -> Any:
    """Return the message of `saved_model.pb`, with the parts that TensorBoard has."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from tensorboard.compat.proto import meta_graph_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name="sparkdl/saved_model.proto",
        package="sparkdl",
        syntax="proto3",
        dependency=[meta_graph_pb2.DESCRIPTOR.name],
    )
    graphs = file.message_type.add(name="SavedModel").field.add(name="meta_graphs", number=2)
    graphs.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
    graphs.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    graphs.type_name = f".{meta_graph_pb2.MetaGraphDef.DESCRIPTOR.full_name}"
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sparkdl.SavedModel"))
