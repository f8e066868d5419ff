"""Runs anywhere (pure). Requests and answers of the Open Inference Protocol v2.

Source of the format: https://kserve.github.io/website/docs/concepts/architecture/data-plane.
Tensors may also be sent as bytes behind the JSON object, as Triton's clients do:
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.serving.json_tensors import (
    MAX_RANK,
    Array,
    check_shape,
    from_json,
    parse,
    plain,
    to_json,
)
from sparkdl.serving.request_error import RequestError, invalid
from sparkdl.serving.signatures import Signature, TensorInfo

MAX_ELEMENTS = 1 << 40
# The parameter of a tensor that a client of Triton has written into memory of its host.
SHARED_MEMORY = "shared_memory_region"
# The names of dtypes in the protocol.
DATATYPES = {
    "bool": "BOOL",
    **{
        f"{sign}int{bits}": f"{sign}int{bits}".upper()
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "string": "BYTES",
}


@dataclass(frozen=True, kw_only=True)
class InferRequest:
    """A request.

    Attributes:
        id: the id that the client has chosen.
        arrays: the inputs by name.
        outputs: the outputs that the client wants, with True for those that it wants as bytes;
            empty for all outputs.
        is_binary: outputs that are not named are wanted as bytes.
    """

    id: str | None
    arrays: dict[str, Array]
    outputs: dict[str, bool]
    is_binary: bool = False


def split(body: bytes, json_length: str | None) -> tuple[dict[str, Any], bytes]:
    """Return the JSON object of a request, and the bytes of tensors behind it.

    Args:
        body: the body.
        json_length: the header `Inference-Header-Content-Length`, None if it is missing.

    Raises:
        RequestError: if the length is no length of a part of the body.
    """
    if json_length is None:
        return parse(body), b""
    # Python refuses to convert some thousand digits.
    is_number = json_length.isdecimal() and len(json_length) < 20
    if not is_number or int(json_length) > len(body):
        raise invalid(
            f"Inference-Header-Content-Length is {json_length!r}; the body has {len(body)}"
        )
    return parse(body[: int(json_length)]), body[int(json_length) :]


def describe(infos: Mapping[str, TensorInfo]) -> list[dict[str, Any]]:
    """Return the inputs or outputs of a signature, as the protocol describes them."""
    return [
        {
            "name": info.name,
            "datatype": DATATYPES.get(info.dtype, info.dtype.upper()),
            "shape": [-1 if size is None else size for size in info.shape or ()],
        }
        for info in infos.values()
    ]


def signature_name(parameters: Any) -> str:
    """Return the name of the signature in the parameters of a request; empty if there is none.

    Raises:
        RequestError: if the name is no text.
    """
    name = parameters.get("signature_name", "") if isinstance(parameters, dict) else ""
    if not isinstance(name, str):
        raise invalid("the parameter signature_name is no text")
    return name


def read(content: Mapping[str, Any], signature: Signature, binary: bytes = b"") -> InferRequest:
    """Return the inputs of a request.

    Args:
        content: its JSON object.
        signature: the signature that the request names.
        binary: the bytes behind the object.

    Raises:
        RequestError: if the inputs do not fit the signature.
    """
    inputs = content.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise invalid("'inputs' is missing; expected a list of tensors")
    arrays: dict[str, Array] = {}
    for tensor in inputs:
        name = tensor.get("name") if isinstance(tensor, dict) else None
        if not isinstance(name, str) or name not in signature.inputs:
            names = ", ".join(signature.inputs)
            raise invalid(f"the model has no input {name!r}; it has {names}")
        if name in arrays:
            raise invalid(f"input {name!r} is there twice")
        _check_memory(tensor, f"input {name!r}")
        size = _parameters(tensor).get("binary_data_size")
        if size is None:
            arrays[name] = _from_data(tensor, signature.inputs[name])
        else:
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(binary):
                raise invalid(
                    f"input {name!r} has binary_data_size {size!r}; {len(binary)} are left"
                )
            arrays[name] = _from_bytes(tensor, signature.inputs[name], binary[:size])
            binary = binary[size:]
        check_shape(arrays[name], signature.inputs[name])
    if missing := [name for name in signature.inputs if name not in arrays]:
        raise invalid(f"input {missing[0]!r} is missing")
    id_ = content.get("id")
    return InferRequest(
        id=id_ if isinstance(id_, str) else None,
        arrays=arrays,
        outputs=_outputs(content.get("outputs"), signature),
        is_binary=bool(_parameters(content).get("binary_data_output")),
    )


def _parameters(value: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = value.get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def _check_memory(tensor: Mapping[str, Any], name: str) -> None:
    """Validate that a tensor is in the request, or belongs into the answer."""
    if SHARED_MEMORY in _parameters(tensor):
        raise RequestError(
            "UNIMPLEMENTED",
            f"{name} is in shared memory, which this server does not read; send the tensor itself",
        )


def _outputs(outputs: Any, signature: Signature) -> dict[str, bool]:
    is_binary = {}
    for output in outputs if isinstance(outputs, list) else []:
        name = output.get("name") if isinstance(output, dict) else None
        if not isinstance(name, str) or name not in signature.outputs:
            raise invalid(
                f"the model has no output {name!r}; it has {', '.join(signature.outputs)}"
            )
        _check_memory(output, f"output {name!r}")
        if _parameters(output).get("classification"):
            text = f"output {name!r} is asked for as classes; ask for its values"
            raise RequestError("UNIMPLEMENTED", text)
        is_binary[name] = bool(_parameters(output).get("binary_data"))
    return is_binary


def _header(tensor: Mapping[str, Any], info: TensorInfo) -> list[int]:
    """Return the shape of a tensor in a request; its datatype must be that of the input."""
    shape = tensor.get("shape")
    datatype = tensor.get("datatype")
    expected = DATATYPES.get(info.dtype)
    if datatype != expected:
        raise invalid(f"input {info.name!r} has datatype {datatype!r}; expected {expected}")
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_RANK
        or not all(type(n) is int and n >= 0 for n in shape)
    ):
        raise invalid(f"input {info.name!r} has shape {shape!r}; expected a list of sizes")
    # An array without values may still have more room than NumPy and TensorFlow can count.
    if math.prod(max(n, 1) for n in shape) >= MAX_ELEMENTS:
        raise invalid(f"input {info.name!r} has shape {shape!r}, which is too large")
    return shape


def _from_data(tensor: Mapping[str, Any], info: TensorInfo) -> Array:
    shape = _header(tensor, info)
    data = tensor.get("data")
    if not isinstance(data, list):
        raise invalid(f"input {info.name!r} has no list 'data'")
    array = from_json(data, info)
    if array.size != math.prod(shape) or (array.ndim > 1 and list(array.shape) != shape):
        raise invalid(
            f"input {info.name!r} has data of shape {list(array.shape)}, but its shape is {shape}"
        )
    return array.reshape(shape)


def _from_bytes(tensor: Mapping[str, Any], info: TensorInfo, data: bytes) -> Array:
    shape = _header(tensor, info)
    if info.dtype not in DATATYPES:
        raise RequestError("UNIMPLEMENTED", f"input {info.name!r} is of dtype {info.dtype}")
    if info.dtype == "bfloat16":
        # The upper half of the bytes of a float32.
        if len(data) % 2:
            raise invalid(f"input {info.name!r} has {len(data)} bytes, no multiple of 2")
        array = (np.frombuffer(data, "<u2").astype("u4") << 16).view("float32")
    elif info.dtype == "string":
        values = _texts(data, info.name)
        array = np.empty(len(values), object)
        array[:] = values
    else:
        dtype = np.dtype(info.dtype).newbyteorder("<")
        if len(data) % dtype.itemsize:
            raise invalid(
                f"input {info.name!r} has {len(data)} bytes, no multiple of {dtype.itemsize}"
            )
        array = np.frombuffer(data, dtype).astype(info.dtype)
    if array.size != math.prod(shape):
        raise invalid(f"input {info.name!r} has {array.size} values, but its shape is {shape}")
    return array.reshape(shape)


def _texts(data: bytes, name: str) -> list[bytes]:
    """Return strings, of which each has its length in four bytes before it."""
    values = []
    place = 0
    while place < len(data):
        if place + 4 > len(data):
            raise invalid(f"input {name!r} ends within the length of a string")
        (length,) = struct.unpack_from("<I", data, place)
        if place + 4 + length > len(data):
            raise invalid(f"input {name!r} ends within a string")
        values.append(data[place + 4 : place + 4 + length])
        place += 4 + length
    return values


# ---- answers


def chosen(
    request: InferRequest, signature: Signature, outputs: Mapping[str, Array]
) -> list[tuple[dict[str, Any], Array]]:
    """Return the outputs that a request asks for: the description and the values of each.

    Raises:
        RequestError: if an output is ragged.
    """
    tensors = []
    for name in request.outputs or outputs:
        if signature.outputs[name].is_ragged:
            raise RequestError("UNIMPLEMENTED", f"output {name!r} is ragged: name other outputs")
        array = np.asarray(outputs[name])
        dtype = signature.outputs[name].dtype
        datatype = DATATYPES.get(dtype, dtype.upper())
        tensors.append(({"name": name, "datatype": datatype, "shape": list(array.shape)}, array))
    return tensors


def answer(
    head: Mapping[str, Any],
    request: InferRequest,
    signature: Signature,
    outputs: Mapping[str, Array],
) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the length of its JSON object if bytes follow.

    Args:
        head: the name and the version of the model.
        request: the request.
        signature: the signature.
        outputs: the outputs by name.
    """
    tensors = []
    parts = []
    for tensor, array in chosen(request, signature, outputs):
        name = tensor["name"]
        if request.outputs.get(name, request.is_binary):
            parts.append(to_bytes(array))
            tensors.append({**tensor, "parameters": {"binary_data_size": len(parts[-1])}})
        else:
            tensors.append({**tensor, "data": plain(array.ravel(), name)})
    id_ = {} if request.id is None else {"id": request.id}
    text = to_json({**head, **id_, "outputs": tensors})
    return b"".join([text, *parts]), len(text) if parts else None


def to_bytes(array: Array) -> bytes:
    """Return the values of a tensor, each string with its length in four bytes before it.

    Example:
        >>> to_bytes(np.array([1, 258], "int16")), to_bytes(np.array([b"hi"], object))
        (b'\\x01\\x00\\x02\\x01', b'\\x02\\x00\\x00\\x00hi')
    """
    if array.dtype.kind in "OS":
        values = [v if isinstance(v, bytes) else str(v).encode() for v in array.ravel().tolist()]
        return b"".join(struct.pack("<I", len(value)) + value for value in values)
    return bytes(array.astype(array.dtype.newbyteorder("<")).tobytes())
