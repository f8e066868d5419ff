"""Runs on the driver. Tensors as messages of TensorFlow, which its gRPC API carries."""

import math
from collections.abc import Mapping
from typing import Any

from sparkdl.serving.json_tensors import Array, check_shape
from sparkdl.serving.request_error import RequestError, invalid
from sparkdl.serving.signatures import Signature, TensorInfo

__all__ = ["read", "wanted", "write"]


def read(tensors: Mapping[str, Any], signature: Signature, max_bytes: int) -> dict[str, Array]:
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
    if math.prod(max(size, 1) for size in sizes) * max(dtype.size, 1) > max_bytes:
        raise invalid(f"input {info.name!r} has shape {sizes[:20]}; {max_bytes} bytes are allowed")
    try:
        array = tf.make_ndarray(tensor)
    except (TypeError, ValueError, OverflowError) as exc:
        raise invalid(f"input {info.name!r} does not have the values of its shape: {exc}") from None
    if info.dtype == "bfloat16":
        array = array.astype("float32")
    check_shape(array, info)
    return array


def wanted(names: list[str], signature: Signature) -> list[str]:
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


def write(array: Array, info: TensorInfo) -> Any:
    """Return an output as a `TensorProto`.

    Raises:
        RequestError: if the output is ragged.
    """
    import tensorflow as tf

    if isinstance(array, list):
        raise RequestError("UNIMPLEMENTED", f"output {info.name!r} is ragged: ask for others")
    return tf.make_tensor_proto(array, dtype=info.dtype)
