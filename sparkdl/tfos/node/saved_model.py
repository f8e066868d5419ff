"""Runs in the training process.

SavedModels from Keras 3 models and from sessions of TensorFlow 1.
"""

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl import storage
from sparkdl.inference.loader import LoadedModel, from_keras

__all__ = ["export_saved_model", "placed", "write_keras"]

# What Keras 3 calls an Input without a name; the number grows in the whole process.
_UNNAMED = re.compile(r"(keras_tensor|input_layer)(_\d+)?")


@contextlib.contextmanager
def placed(url: str | None) -> Iterator[str]:
    """A local folder whose files are at `url` afterwards; None throws them away.

    Args:
        url: a local path or a URL that fsspec understands.
    """
    if url is not None and storage.is_local(url):
        yield str(storage.local_path(url))
        return
    with tempfile.TemporaryDirectory(prefix="sparkdl-export-") as temporary:
        folder = Path(temporary, "model")
        yield str(folder)
        if url is not None:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    storage.put(folder, path.relative_to(folder).as_posix(), url)


# ---- Keras 3


def write_keras(model: Any, folder: str) -> None:
    """Write a Keras 3 model; `serving_default` calls inputs and outputs as Keras 2 did.

    Raises:
        ValueError: the model was never called.
    """
    import keras
    import tensorflow as tf

    found = from_keras(model)
    inputs = _input_names(model, found)
    outputs = _output_names(model)

    def serve(*tensors: Any) -> dict[str, Any]:
        given = tf.nest.flatten(found.function(*tensors))
        names = outputs or [f"output_{i + 1}" for i in range(len(given))]
        return dict(zip(names, given, strict=True))

    function = tf.function(serve, autograph=False)
    function.get_concrete_function(
        *(
            tf.TensorSpec([None, *(tensor.shape or ())], tensor.dtype or "float32", name=name)
            for tensor, name in zip(found.inputs, inputs, strict=True)
        )
    )
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", function)
    archive.write_out(folder, verbose=False)


def _input_names(model: Any, found: LoadedModel) -> list[str]:
    given = [tensor.name for tensor in found.inputs]
    named = bool(getattr(model, "inputs", None)) and not any(map(_UNNAMED.fullmatch, given))
    if named:
        return given
    if type(model).__name__ == "Sequential":
        return [f"{model.layers[0].name}_input"]
    is_class = not getattr(model, "inputs", None)
    return [
        f"input_{i + 1}" if is_class or _UNNAMED.fullmatch(name) else name
        for i, name in enumerate(given)
    ]


def _output_names(model: Any) -> Sequence[str]:
    """The layers that a model's outputs come from; nothing where it does not know them."""
    names: Sequence[str] = getattr(model, "output_names", None) or ()
    if not names and type(model).__name__ == "Sequential":
        names = [model.layers[-1].name]
    return names


# ---- TensorFlow 1


def export_saved_model(
    sess: Any, export_dir: str, tag_set: str, signatures: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the graph and the variables of a TensorFlow 1 session as a SavedModel.

    The session's graph stays as it is, also where a `MonitoredTrainingSession` has closed it.
    Variables that live on parameter servers are fetched.

    Args:
        sess: a `tf.compat.v1.Session`, or a monitored one.
        export_dir: a folder that is not there yet, or empty, or a URL.
        tag_set: tags with commas between them, such as `"serve"`.
        signatures: by name, `{"inputs": {alias: tensor}, "outputs": {alias: tensor},
            "method_name": ...}`, where a tensor may be given by its name, and the method's name
            is by default the signature's.

    Example:
        >>> import tensorflow.compat.v1 as tf1
        >>> with tf1.Graph().as_default(), tf1.Session() as sess:
        ...     x = tf1.placeholder("float32", [None], name="x")
        ...     y = x * tf1.get_variable("w", initializer=3.0)
        ...     sess.run(tf1.global_variables_initializer())
        ...     signature = {"inputs": {"x": x}, "outputs": {"y": y}}
        ...     export_saved_model(sess, "tripled", "serve", {"serving_default": signature})
        >>> import tensorflow as tf
        >>> function = tf.saved_model.load("tripled").signatures["serving_default"]
        >>> function(x=tf.constant([2.0]))["y"].numpy().tolist()
        [6.0]
    """
    import tensorflow.compat.v1 as tf1

    variables = sess.graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
    values = sess.run(variables)
    definition = sess.graph.as_graph_def()
    inner = (node for function in definition.library.function for node in function.node_def)
    for node in (*definition.node, *inner):
        node.device = ""  # Of a cluster that will be gone.
    # A copy: saving adds to the graph, and a closed one takes nothing more.
    with tf1.Graph().as_default() as graph, tf1.Session(graph=graph) as copy:
        tf1.import_graph_def(definition, name="")
        for variable, value in zip(variables, values, strict=True):
            copied = type(variable).from_proto(variable.to_proto())
            graph.add_to_collection(tf1.GraphKeys.GLOBAL_VARIABLES, copied)
            copied.load(value, copy)
        chosen = {name: _signature(graph, name, given) for name, given in signatures.items()}
        with placed(export_dir) as folder:
            builder = tf1.saved_model.Builder(folder)
            builder.add_meta_graph_and_variables(copy, tag_set.split(","), signature_def_map=chosen)
            builder.save()


def _signature(graph: Any, name: str, given: Mapping[str, Any]) -> Any:
    import tensorflow.compat.v1 as tf1

    def infos(tensors: Mapping[str, Any]) -> dict[str, Any]:
        names = {alias: getattr(tensor, "name", tensor) for alias, tensor in tensors.items()}
        return {
            alias: tf1.saved_model.build_tensor_info(
                graph.get_tensor_by_name(full if ":" in full else f"{full}:0")
            )
            for alias, full in names.items()
        }

    return tf1.saved_model.build_signature_def(
        inputs=infos(given["inputs"]),
        outputs=infos(given["outputs"]),
        method_name=given.get("method_name", name),
    )
