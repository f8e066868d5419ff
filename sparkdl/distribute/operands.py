"""Runs in the training process. The arrays of collectives, and the blocks in which they travel."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.call_header import OPERATIONS
from sparkdl.distribute.shared_memory import BLOCK_BYTES


def as_array(array: Any) -> Any:
    """Return a contiguous array of a value.

    Raises:
        TypeError: if it does not have numbers, or hides some.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            "a collective got a masked array, and would use the values that the mask hides. Fill "
            "them first, such as with array.filled(0)."
        )
    array = np.asarray(array, order="C")
    if array.dtype.hasobject or array.dtype.kind in "US":
        raise TypeError(
            f"a collective got an array of {array.dtype}; expected numbers. Use "
            "distribute.allgather_object or broadcast_object for text and other small Python "
            "values."
        )
    return array


def check_operand(array: Any, op: str) -> Any:
    """Return a contiguous array of a value that is reduced by an operation.

    Raises:
        TypeError, ValueError: if it cannot be.
    """
    array = as_array(array)
    if op not in OPERATIONS:
        raise ValueError(f"op is {op!r}; expected one of {', '.join(OPERATIONS)}.")
    if op == "mean" and array.dtype.kind == "b":
        raise TypeError("the mean of booleans has no boolean value; cast them, or use op='sum'.")
    return array


def block_slices(part: slice, num_items: int) -> list[slice]:
    """Return the slices of at most `num_items` items that make up a part."""
    starts = range(part.start, part.stop, num_items)
    return [slice(start, min(start + num_items, part.stop)) for start in starts]


def all_blocks(arrays: Sequence[Any]) -> list[Any]:
    """Return the bytes of contiguous arrays, as views of at most BLOCK_BYTES."""
    flats = [array.reshape(-1).view(np.uint8) for array in arrays]
    return [
        flat[block] for flat in flats for block in block_slices(slice(0, flat.size), BLOCK_BYTES)
    ]


def bytes_of(array: Any, block: slice) -> Any:
    """Return some items of a contiguous array as a view of bytes."""
    return array[block].view(np.uint8)
