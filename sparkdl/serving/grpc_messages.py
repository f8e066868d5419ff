"""Runs on the driver. Tensors, examples and results as messages of TensorFlow's gRPC API."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparkdl.serving.example_format import check_size
from sparkdl.serving.json_tensors import Array, check_shape
from sparkdl.serving.request_error import RequestError, invalid
from sparkdl.serving.signatures import Signature, TensorInfo

# Memory of a text beside its characters, in the arrays of NumPy and of TensorFlow.
TEXT_BYTES = 40


def read_tensors(
    tensors: Mapping[str, Any], signature: Signature, max_bytes: int
) -> dict[str, Array]:
    """Return the inputs of a request.

    Args:
        tensors: a `TensorProto` for each input of the signature.
        signature: the signature.
        max_bytes: the size of the largest tensor, which may be larger than its message.

    Raises:
        RequestError: if the inputs do not fit the signature.
    """
    if tensors.keys() != signature.inputs.keys():
        raise invalid(
            f"the request has the inputs {', '.join(sorted(tensors)) or 'none'}; signature "
            f"{signature.name!r} has {', '.join(signature.inputs)}"
        )
    return {name: _array(tensors[name], info, max_bytes) for name, info in signature.inputs.items()}


def _array(tensor: Any, info: TensorInfo, max_bytes: int) -> Array:
    import tensorflow as tf

    try:
        dtype = tf.dtypes.as_dtype(tensor.dtype)
    except TypeError:
        raise invalid(f"input {info.name!r} has dtype {tensor.dtype}, which is unknown") from None
    if dtype.name != info.dtype:
        raise invalid(f"input {info.name!r} has dtype {dtype.name}; expected {info.dtype}")
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_shape.unknown_rank or any(size < 0 for size in sizes):
        raise invalid(f"input {info.name!r} has no complete shape")
    # A message may have one value for a tensor of any size.
    if _num_bytes(tensor, dtype, math.prod(max(size, 1) for size in sizes)) > max_bytes:
        raise invalid(f"input {info.name!r} has shape {sizes[:20]}; {max_bytes} bytes are allowed")
    try:
        array = tf.make_ndarray(tensor)
    except (TypeError, ValueError, OverflowError) as exc:
        raise invalid(f"input {info.name!r} does not have the values of its shape: {exc}") from None
    if info.dtype == "bfloat16":
        array = array.astype("float32")
    check_shape(array, info)
    return array


def _num_bytes(tensor: Any, dtype: Any, num_values: int) -> int:
    """Return the size of a tensor in memory, where its last value stands for those not sent."""
    if dtype.name != "string":
        return num_values * max(int(dtype.size), 1)
    texts = tensor.string_val
    repeated = TEXT_BYTES + (len(texts[-1]) if texts else 0)
    return num_values + max(0, num_values - len(texts)) * repeated


def output_names(names: list[str], signature: Signature) -> list[str]:
    """Return the names of the outputs that a request asks for; by default all outputs.

    Raises:
        RequestError: if there is no such output, or it is asked for twice.
    """
    for name in names:
        if name not in signature.outputs:
            raise invalid(
                f"output tensor alias not found in signature: {name} Outputs expected to be in the "
                f"set {{{','.join(signature.outputs)}}}."
            )
    if len({*names}) < len(names):
        raise invalid(f"duplicate output tensor alias in {', '.join(names)}")
    return names or [*signature.outputs]


def write_tensor(array: Array, info: TensorInfo) -> Any:
    """Return an output as a `TensorProto`.

    Raises:
        RequestError: if the output is ragged.
    """
    import tensorflow as tf

    if isinstance(array, list):
        raise RequestError("UNIMPLEMENTED", f"output {info.name!r} is ragged: ask for others")
    return tf.make_tensor_proto(array, dtype=info.dtype)


def read_examples(message: Any) -> Array:
    """Return the serialized `tf.train.Example`s of a request.

    Args:
        message: an `Input`: a list of examples, or a list of examples with a common context.

    Raises:
        RequestError: if there are no examples, or they are too large.
    """
    context = b""
    if message.WhichOneof("kind") == "example_list_with_context":
        context = message.example_list_with_context.context.SerializeToString()
        examples = message.example_list_with_context.examples
    else:
        examples = message.example_list.examples
    if not examples:
        raise invalid("Input is empty.")
    array = np.empty(len(examples), object)
    num_bytes = 0
    for number, example in enumerate(examples):
        # Messages that follow one another are read as one message.
        array[number] = context + example.SerializeToString()
        num_bytes += len(array[number])
        check_size(num_bytes)
    return array


def write_classes(results: list[Any], response: Any) -> None:
    """Write the label and the score of each class into an answer.

    Args:
        results: a list for each example, of pairs of a label and a score.
        response: the answer, a `ClassificationResponse`.

    Raises:
        RequestError: if a label is no text.
    """
    for pairs in results:
        classes = response.result.classifications.add().classes
        for label, score in pairs:
            if not isinstance(label, str):
                raise RequestError("UNIMPLEMENTED", "a label of the model is no text in UTF-8")
            classes.add(label=label, score=score)


def write_values(results: list[Any], response: Any) -> None:
    """Write the value of each example into an answer.

    Args:
        results: the values.
        response: the answer, a `RegressionResponse`.
    """
    for value in results:
        response.result.regressions.add(value=value)
