"""Runs anywhere (pure). Requests and answers of TensorFlow Serving's `:classify` and `:regress`.

Source of the format: https://www.tensorflow.org/tfx/serving/api_rest#classify_and_regress_api
"""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparkdl.data.tfexample.encode import varint, varints
from sparkdl.serving.json_tensors import Array, from_json, is_base64, plain
from sparkdl.serving.request_error import invalid
from sparkdl.serving.signatures import Signature, TensorInfo

# The examples of a request, each with a copy of the context, which may be large.
MAX_BYTES = 1 << 28
_TEXT = TensorInfo("feature", "string", None)


def read_examples(content: Mapping[str, Any]) -> Array:
    """Return the serialized `tf.train.Example`s of a request.

    Raises:
        RequestError: if the examples are missing, or a feature has values of different kinds.

    Example:
        >>> read_examples({"examples": [{"x": 1.0}]}).tolist()
        [b'\\n\\x0f\\n\\r\\n\\x01x\\x12\\x08\\x12\\x06\\n\\x04\\x00\\x00\\x80?']
    """
    examples = content.get("examples")
    if not isinstance(examples, list):
        raise invalid("expecting 'examples' value to be a list of objects")
    if not examples:
        raise invalid("'examples' value is an empty array")
    context = content.get("context", {})
    if not isinstance(context, dict):
        raise invalid("Example must be JSON object")
    context_features = b"".join(_entry(*item) for item in context.items())
    array = np.empty(len(examples), object)
    num_bytes = 0
    for number, example in enumerate(examples):
        if not isinstance(example, dict):
            raise invalid("Example must be JSON object")
        if both := context.keys() & example.keys():
            raise invalid(f"feature {min(both)!r} is in 'context' and in example {number}")
        features = b"".join(_entry(*item) for item in example.items())
        array[number] = _field(1, context_features + features)
        num_bytes += len(array[number])
        check_size(num_bytes)
    return array


def check_size(num_bytes: int) -> None:
    """Validate the size of the examples of a request.

    Raises:
        RequestError: if they are too large.
    """
    if num_bytes > MAX_BYTES:
        raise invalid(f"the examples with their context have more than {MAX_BYTES} bytes")


def _field(number: int, content: bytes) -> bytes:
    """Encode a field with a length. https://protobuf.dev/programming-guides/encoding"""
    return bytes([8 * number + 2]) + varint(len(content)) + content


def _entry(name: str, value: Any) -> bytes:
    """Encode a feature, an entry of the map of an Example."""
    values = value if isinstance(value, list) else [value]
    kinds = {_kind(item, name) for item in values}
    if len(kinds) > 1:
        raise invalid(f"feature {name!r} has values of different kinds: {', '.join(sorted(kinds))}")
    feature = _list(values, kinds.pop(), name) if kinds else b""
    return _field(1, _field(1, name.encode(errors="surrogatepass")) + _field(2, feature))


def _kind(value: Any, name: str) -> str:
    if isinstance(value, str) or is_base64(value):
        return "bytes"
    if isinstance(value, float):
        return "float"
    if isinstance(value, int):
        return "int64"
    raise invalid(f"Feature: {name} has element with unexpected JSON type: {type(value).__name__}")


def _list(values: list[Any], kind: str, name: str) -> bytes:
    """Encode the values of a feature: field 1 has bytes, field 2 floats, and field 3 int64s."""
    if kind == "bytes":
        return _field(1, b"".join(_field(1, v) for v in from_json(values, _TEXT).tolist()))
    if kind == "float":
        floats = from_json(values, TensorInfo(name, "float32", None)).tolist()
        return _field(2, _field(1, struct.pack(f"<{len(floats)}f", *floats)))
    integers = from_json([int(value) for value in values], TensorInfo(name, "int64", None))
    return _field(3, _field(1, varints(integers)[0]))


def example_input(signature: Signature, method: str) -> str:
    """Return the name of the input that takes examples.

    Args:
        signature: the signature.
        method: `classify` or `regress`.

    Raises:
        RequestError: if the signature is of another method.
    """
    names = {"classify": {"classes", "scores"}, "regress": {"outputs"}}[method]
    inputs = list(signature.inputs.values())
    has_outputs = signature.outputs.keys() <= names and len(signature.outputs) > 0
    if len(inputs) != 1 or inputs[0].dtype != "string" or not has_outputs:
        raise invalid(
            f"Expected {method} signature method_name to be tensorflow/serving/{method}, with one "
            f"input of strings and the outputs {' or '.join(sorted(names))}. Signature "
            f"{signature.name!r} has method {signature.method}, the inputs "
            f"{', '.join(signature.inputs)} and the outputs {', '.join(signature.outputs)}"
        )
    return inputs[0].name


def classify_answer(outputs: Mapping[str, Array], num_examples: int) -> dict[str, Any]:
    """Return the label and score of each class, for each example.

    Raises:
        RequestError: if the outputs have another number of rows.
    """
    columns = {name: _rows(outputs[name], num_examples, 2) for name in outputs}
    scores = columns.get("scores")
    classes = columns.get("classes")
    if scores is None and classes is not None:
        scores = [[0.0] * len(row) for row in classes]
    if classes is None and scores is not None:
        classes = [[""] * len(row) for row in scores]
    pairs = zip(classes or [], scores or [], strict=True)
    return {"results": [list(map(list, zip(*pair, strict=True))) for pair in pairs]}


def regress_answer(outputs: Mapping[str, Array], num_examples: int) -> dict[str, Any]:
    """Return the value of each example.

    Raises:
        RequestError: if the outputs have another number of rows.
    """
    array = outputs["outputs"]
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return {"results": _rows(array, num_examples, 1)}


def _rows(array: Array, num_examples: int, ndim: int) -> Any:
    if array.ndim != ndim or len(array) != num_examples:
        raise invalid(
            f"the model returned shape {list(array.shape)} for {num_examples} examples; expected "
            f"{ndim} axes, the first of them with a row per example"
        )
    return plain(array, "")
