"""Runs in the training process. Horovod's join: ranks whose rows have run out take part with zeros.

Each reduction is announced, which costs one small reduction more.
"""

from typing import Any

import numpy as np

from sparkdl import context
from sparkdl.distribute.ring import OPERATIONS, Ring
from sparkdl.distribute.world import ring

__all__ = ["announced", "join"]

# Their places stand for them in an announcement.
_DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
_DTYPES += ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


def join() -> int:
    """Take part in what the other ranks reduce, with zeros, until all have called it.

    For ranks whose rows have run out. The others may call `allreduce`, and train with a
    `DistributedOptimizer` or `DistributedGradientTape`; their averages count this rank's zeros.

    Returns:
        The rank that has called it last.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.join()
        0
    """
    world = ring()
    last = context.current().rank
    while True:
        active, announcement = _announce(world, None)
        if not active:
            return int(world.allreduce(np.array([last]), "max")[0])
        last = max(active)
        dtype, op, count = announcement
        world.allreduce(np.zeros(count, _DTYPES[dtype]), list(OPERATIONS)[op])


def announced(world: Ring, array: Any, op: str, out: Any = None) -> Any:
    """`Ring.allreduce` that ranks which have called `join` take part in."""
    _announce(world, (_DTYPES.index(array.dtype.name), list(OPERATIONS).index(op), array.size))
    return world.allreduce(array, op, out)


def _announce(world: Ring, call: tuple[int, int, int] | None) -> tuple[list[int], list[int]]:
    """Who is active, and what they are about to reduce; None says that this rank is not."""
    # By the rank in the gang: of an elastic one some may be lost meanwhile.
    me = context.current()
    told = np.zeros(me.world_size + 3, np.int64)
    if call:
        told[me.rank], told[-3:] = 1, call
    told = world.allreduce(told, "max")
    return np.flatnonzero(told[:-3]).tolist(), told[-3:].tolist()
