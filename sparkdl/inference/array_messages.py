"""Runs anywhere. Send arrays between the server and the process of a model.

A message is a header in JSON, and the bytes of each array of numbers. Nothing is unpickled: neither
side runs code that the other sends.
"""

import json
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np


def send(connection: Connection, arrays: Sequence[Any], **header: Any) -> None:
    """Send arrays, and values for JSON.

    Args:
        connection: the end of this process.
        arrays: arrays of numbers or text, or lists of arrays of different lengths.
        header: further values.
    """
    buffers: list[bytes] = []
    described = [_describe(array, buffers) for array in arrays]
    connection.send_bytes(json.dumps({**header, "arrays": described}).encode())
    for buffer in buffers:
        connection.send_bytes(buffer)


def receive(connection: Connection) -> tuple[list[Any], Mapping[str, Any]]:
    """Return the arrays and the values of the next message.

    Raises:
        EOFError: if the other process has ended.
    """
    header = json.loads(connection.recv_bytes())
    arrays = [_array(described, connection) for described in header.pop("arrays")]
    return arrays, header


def _describe(array: Any, buffers: list[bytes]) -> dict[str, Any]:
    if isinstance(array, list):
        return {"rows": [_describe(np.asarray(row), buffers) for row in array]}
    if array.dtype == object and array.size and all(isinstance(v, bytes) for v in array.flat):
        values = array.ravel().tolist()
        buffers.append(b"".join(values))
        return {"lengths": [len(value) for value in values], "shape": array.shape}
    if array.dtype.kind in "OSU":
        texts = [v.decode() if isinstance(v, bytes) else v for v in array.ravel().tolist()]
        if wrong := [v for v in texts if not isinstance(v, str | None)]:
            raise TypeError(f"an array of text has {wrong[0]!r}; expected text.")
        return {"text": texts, "shape": array.shape}
    buffers.append(np.ascontiguousarray(array).tobytes())
    return {"dtype": array.dtype.str, "shape": array.shape}


def _array(described: Mapping[str, Any], connection: Connection) -> Any:
    if "rows" in described:
        return [_array(row, connection) for row in described["rows"]]
    if "text" in described:
        return np.array(described["text"], object).reshape(described["shape"])
    data = connection.recv_bytes()
    if "lengths" in described:
        ends = np.cumsum(described["lengths"]).tolist()
        values = [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return np.array([*values, None], object)[:-1].reshape(described["shape"])
    return np.frombuffer(bytearray(data), described["dtype"]).reshape(described["shape"])
