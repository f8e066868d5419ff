"""Runs in the training process. Horovod's join: ranks whose rows have run out contribute zeros.

Each reduction is announced first, which costs one more small reduction.
"""

from typing import Any

import numpy as np

from sparkdl import context
from sparkdl.distribute.ring import OPERATIONS, Ring
from sparkdl.distribute.world import ring

__all__ = ["announced_allreduce", "join"]

# An announcement holds the index of a dtype in this list.
_DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
_DTYPES += ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


def join() -> int:
    """Contribute zeros to the reductions of the other ranks, until all ranks have called `join`.

    For ranks whose rows have run out. The others may call `allreduce`, and train with a
    `DistributedOptimizer` or `DistributedGradientTape`; the zeros of this rank count in averages.

    Returns:
        The last rank that called `join`.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.join()
        0
    """
    world = ring()
    last_active = context.current().rank
    while True:
        active_ranks, announcement = _announce(world, None)
        if not active_ranks:
            return int(world.allreduce(np.array([last_active]), "max")[0])
        last_active = max(active_ranks)
        dtype, op, size = announcement
        world.allreduce(np.zeros(size, _DTYPES[dtype]), list(OPERATIONS)[op])


def announced_allreduce(world: Ring, array: Any, op: str, out: Any = None) -> Any:
    """Call `Ring.allreduce` after an announcement, so that joined ranks can take part.

    Args:
        world: the ring of all ranks.
        array, op, out: see `Ring.allreduce`.
    """
    _announce(world, (_DTYPES.index(array.dtype.name), list(OPERATIONS).index(op), array.size))
    return world.allreduce(array, op, out)


def _announce(world: Ring, call: tuple[int, int, int] | None) -> tuple[list[int], list[int]]:
    """Exchange announcements with all ranks.

    Args:
        world: the ring of all ranks.
        call: index of the dtype, index of the operation and number of elements of this rank's next
            reduction; None if this rank has joined.

    Returns:
        The active ranks, and the call that they announce.
    """
    # Ranks in the gang: an elastic ring may lose ranks meanwhile, and number the others anew.
    me = context.current()
    announcement = np.zeros(me.world_size + 3, np.int64)
    if call:
        announcement[me.rank] = 1
        announcement[-3:] = call
    announcement = world.allreduce(announcement, "max")
    return np.flatnonzero(announcement[:-3]).tolist(), announcement[-3:].tolist()
