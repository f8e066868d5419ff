"""Runs in the training process. Give arrays memory of their own."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data.ragged import Ragged

# TensorFlow uses memory with this alignment without a further copy. Arrow's pool aligns so.
_ALIGNMENT_BYTES = 64


def new_array(shape: Sequence[int], dtype: "np.dtype[Any]") -> "np.ndarray[Any, Any]":
    """Return a new array, in aligned memory of Arrow's pool.

    The pool reuses memory. With TensorFlow, C's `malloc` gets large memory from the kernel each
    time, which clears every page.
    """
    if dtype.hasobject:
        return np.empty(shape, dtype)
    memory = pa.allocate_buffer(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(memory, dtype).reshape(shape)


def owned(array: Any, is_fresh: bool = False) -> Any:
    """Return the array in memory of its own, that can be changed in place.

    An array that is a view of Arrow's memory is read-only, and is copied: the files of received
    rows are mapped and are read again in later passes. TensorFlow uses aligned memory without a
    copy and may compute in place: a slice of a tensor does not know that its memory must not
    change.

    Args:
        array: the array.
        is_fresh: True if nothing else uses Arrow's memory, so that a copy is not needed.

    Example:
        >>> x = pa.array([1, 2]).to_numpy()
        >>> x.flags.writeable, owned(x).flags.writeable
        (False, True)
    """
    if array.flags.writeable or array.dtype == object:
        return array
    if is_fresh and array.ctypes.data % _ALIGNMENT_BYTES == 0:
        return np.asarray(_Writable(array))
    return copied(array)


def copied(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return a copy in memory of Arrow's pool."""
    copy = new_array(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


class _Writable:
    """Make NumPy regard the memory of a read-only array as writable."""

    def __init__(self, array: "np.ndarray[Any, Any]") -> None:
        self.array = array  # Keeps the memory.
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def separately_owned(is_fresh: bool = False) -> Callable[[Any], Any]:
    """Return a function that gives each array memory of its own: a column may be selected twice.

    Args:
        is_fresh: see `owned`.
    """
    addresses: set[int] = set()

    def in_own_memory(array: Any) -> Any:
        if isinstance(array, Ragged):
            return dataclasses.replace(array, values=in_own_memory(array.values))
        mine = owned(array, is_fresh)
        address = mine.ctypes.data
        if address in addresses:
            return mine.copy()
        addresses.add(address)
        return mine

    return in_own_memory
