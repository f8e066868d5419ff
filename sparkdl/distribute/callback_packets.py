"""Runs in the training process. The states of Keras's callbacks, for a rank that joins late."""

import json
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.callback_states import dtype_named, restore, states_of

_logger = logging.getLogger("sparkdl.distribute")
_LENGTH_BYTES = 8


def pack(callbacks: Sequence[Any]) -> bytes:
    """Return the states of callbacks as bytes. A state that cannot be sent is left out.

    Args:
        callbacks: the callbacks of a `fit`, in order.
    """
    states, arrays = states_of(callbacks, strict=False)
    kinds = [[array.dtype.name, array.shape] for array in arrays]
    text = json.dumps({"states": states, "arrays": kinds}).encode()
    parts = [len(text).to_bytes(_LENGTH_BYTES, "little"), text]
    return b"".join([*parts, *(array.tobytes() for array in arrays)])


def unpack(callbacks: Sequence[Any], packet: bytes) -> None:
    """Give callbacks the states that another rank has packed.

    Args:
        callbacks: the callbacks of a `fit`, in order, after all of them have begun.
        packet: the result of `pack`.
    """
    end = _LENGTH_BYTES + int.from_bytes(packet[:_LENGTH_BYTES], "little")
    message = json.loads(packet[_LENGTH_BYTES:end])
    arrays = []
    for name, shape in message["arrays"]:
        dtype, size = dtype_named(name), int(np.prod(shape))
        arrays.append(np.frombuffer(packet, dtype, size, end).reshape(shape).copy())
        end += size * dtype.itemsize
    if remarks := restore(callbacks, message["states"], arrays):
        _logger.warning("this rank joins the fit of the others; %s.", "; ".join(remarks))
