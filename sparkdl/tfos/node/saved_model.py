"""Runs in the training process. Write Keras 3 models and TensorFlow 1 sessions as SavedModels."""

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl.files import storage
from sparkdl.inference.loader import LoadedModel, from_keras
from sparkdl.models.saved_model import write_saved_model

# The names that Keras 3 gives to inputs without a name. The number is counted per process.
_UNNAMED = re.compile(r"(keras_tensor|input_layer)(_\d+)?")


@contextlib.contextmanager
def uploaded_folder(url: str | None) -> Iterator[str]:
    """Yield a local folder, and copy its files to `url` afterwards.

    Args:
        url: a local path or a URL that fsspec understands; None discards the files.
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
    """Write a Keras 3 model, with the input and output names of Keras 2 in `serving_default`.

    Raises:
        ValueError: if the model has never been called.
    """
    import tensorflow as tf

    loaded = from_keras(model)
    inputs = _input_names(model, loaded)
    outputs = _output_names(model)

    def serve(*tensors: Any) -> dict[str, Any]:
        results = tf.nest.flatten(loaded.function(*tensors))
        names = outputs or [f"output_{i + 1}" for i in range(len(results))]
        return dict(zip(names, results, strict=True))

    specs = [
        tf.TensorSpec([None, *(tensor.shape or ())], tensor.dtype or "float32", name=name)
        for tensor, name in zip(loaded.inputs, inputs, strict=True)
    ]
    write_saved_model(model, "keras", folder, specs, serve)


def _input_names(model: Any, loaded_model: LoadedModel) -> list[str]:
    """Return the names that Keras 2 gives to the inputs of a model."""
    names = [tensor.name for tensor in loaded_model.inputs]
    is_subclassed = not getattr(model, "inputs", None)
    if not is_subclassed and not any(map(_UNNAMED.fullmatch, names)):
        return names
    if type(model).__name__ == "Sequential":
        return [f"{model.layers[0].name}_input"]
    return [
        f"input_{i + 1}" if is_subclassed or _UNNAMED.fullmatch(name) else name
        for i, name in enumerate(names)
    ]


def _output_names(model: Any) -> Sequence[str]:
    """Return the names of a model's output layers; empty if the model does not know them."""
    names: Sequence[str] = getattr(model, "output_names", None) or ()
    if not names and type(model).__name__ == "Sequential":
        names = [model.layers[-1].name]
    return names


# ---- TensorFlow 1


def export_saved_model(
    sess: Any, export_dir: str, tag_set: str, signatures: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the graph and the variables of a TensorFlow 1 session as a SavedModel.

    The graph of the session is not changed, even if a `MonitoredTrainingSession` has finalized it.
    Variables on parameter servers are fetched.

    Args:
        sess: a `tf.compat.v1.Session`, or a monitored session.
        export_dir: a folder that does not exist or is empty, or a URL.
        tag_set: comma-separated tags, such as `"serve"`.
        signatures: by signature name, a dict `{"inputs": {alias: tensor}, "outputs": {alias:
            tensor}, "method_name": ...}`. A tensor may be given by its name. The default method
            name is the name of the signature.

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
        node.device = ""  # The devices of this cluster will not exist where the model is loaded.
    # Saving adds operations to a graph, and a finalized graph accepts none: save a copy.
    with tf1.Graph().as_default() as graph, tf1.Session(graph=graph) as copy:
        tf1.import_graph_def(definition, name="")
        for variable, value in zip(variables, values, strict=True):
            copied = type(variable).from_proto(variable.to_proto())
            graph.add_to_collection(tf1.GraphKeys.GLOBAL_VARIABLES, copied)
            copied.load(value, copy)
        definitions = {name: _signature(graph, name, spec) for name, spec in signatures.items()}
        with uploaded_folder(export_dir) as folder:
            builder = tf1.saved_model.Builder(folder)
            tags = tag_set.split(",")
            builder.add_meta_graph_and_variables(copy, tags, signature_def_map=definitions)
            builder.save()


def _signature(graph: Any, name: str, spec: Mapping[str, Any]) -> Any:
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
        inputs=infos(spec["inputs"]),
        outputs=infos(spec["outputs"]),
        method_name=spec.get("method_name", name),
    )
