"""Runs in the training process. Horovod's ranks and sizes as tensors, which a graph computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from sparkdl.horovod.process_sets import get_process_set_ids_and_ranks
from sparkdl.horovod.ranks import local_rank, local_size, rank

__all__ = ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]


def rank_op(name: str | None = None) -> Any:
    """Return `rank` as a tensor, which a graph computes when it runs."""
    return _number_op(rank)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks of a process set as a tensor, see `rank_op`."""
    return _number_op(lambda: len(get_process_set_ids_and_ranks()[process_set_id]))


def local_rank_op(name: str | None = None) -> Any:
    """Return `local_rank` as a tensor, see `rank_op`."""
    return _number_op(local_rank)


def local_size_op(name: str | None = None) -> Any:
    """Return `local_size` as a tensor, see `rank_op`."""
    return _number_op(local_size)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 as a tensor if this rank is in a process set, otherwise 0, see `rank_op`."""
    return _number_op(lambda: int(rank() in get_process_set_ids_and_ranks()[process_set_id]))


def _number_op(number: Callable[[], int]) -> Any:
    return tf.ensure_shape(tf.numpy_function(lambda: np.int32(number()), [], tf.int32), [])
