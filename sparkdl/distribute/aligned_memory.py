"""Runs in the training process. Memory that TensorFlow uses without a copy, see py_func.cc."""

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64


def aligned_empty(shape: Sequence[int], dtype: Any) -> Any:
    """Return a new array whose memory is aligned.

    Args:
        shape: its shape.
        dtype: NumPy dtype of the elements.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return _aligned(_owner(nbytes), nbytes, dtype).reshape(shape)


def aligned_copy(array: Any) -> Any:
    """Return a copy of an array in aligned memory."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


class Pool:
    """Memory for results, reused after TensorFlow has released it.

    New memory would cost a page fault for every 4 KiB, at each step.
    """

    def __init__(self) -> None:
        self._owners: list[Any] = []

    def take(self, size: int, dtype: Any) -> Any:
        """Return an aligned array. Its memory is in use until the last reference is dropped.

        Args:
            size: number of elements.
            dtype: NumPy dtype of the elements.
        """
        nbytes = size * np.dtype(dtype).itemsize
        for owner in self._owners:
            # Unused memory has three references: this list, `owner`, and the argument of the call.
            # Python 3.14 may lend `owner` to the call without a reference: count again there.
            if owner.size == nbytes + ALIGNMENT and sys.getrefcount(owner) == 3:
                break
        else:
            owner = _owner(nbytes)
            self._owners.append(owner)
        return _aligned(owner, nbytes, dtype)


def _owner(nbytes: int) -> Any:
    return np.empty(nbytes + ALIGNMENT, np.uint8)


def _aligned(owner: Any, nbytes: int, dtype: Any) -> Any:
    begin = -owner.ctypes.data % ALIGNMENT
    return owner[begin : begin + nbytes].view(dtype)
