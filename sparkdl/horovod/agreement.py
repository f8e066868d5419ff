"""Runs in the training process. Ranks agree on each collective before any of its data travels.

Ranks that call different collectives all get the same error, and the ring stays usable. A rank
whose rows have run out takes part with zeros, see `join`.
"""

import contextlib
import functools
import hashlib
import json
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.ring import Ring
from sparkdl.distribute.world import ring
from sparkdl.files.typed_json import dtype_named

__all__ = ["Disagreement", "agree", "contribute", "describe", "join", "together"]

_DIGEST_BYTES = 16
_JOINED = bytes(_DIGEST_BYTES)


class Disagreement(ValueError):
    """The ranks have called different collectives."""


@contextlib.contextmanager
def together(world: Ring) -> Iterator[Ring]:
    """Keep other threads out of a ring, from the agreement to the end of the data.

    Args:
        world: the ring.
    """
    with _locks(os.getpid()).setdefault(world, threading.RLock()):
        yield world


def describe(call: str, arrays: Sequence[Any], *, rows_differ: bool = False, **more: Any) -> Any:
    """Return the description of a collective, which must be equal on all ranks.

    Args:
        call: name of the collective.
        arrays: the arrays of this rank.
        rows_differ: the arrays of other ranks may differ in their first dimension.
        **more: further arguments that must be equal.
    """
    shapes = [list(array.shape[rows_differ:]) for array in arrays]
    ndims = [array.ndim for array in arrays]
    dtypes = [array.dtype.name for array in arrays]
    return {"call": call, "dtypes": dtypes, "ndims": ndims, "shapes": shapes, **more}


def agree(world: Ring, description: Any) -> None:
    """Require that all ranks call the same collective.

    Args:
        world: the ring of the ranks that take part.
        description: see `describe`; with the key `error` if this rank cannot take part.

    Raises:
        Disagreement: on all ranks, if the descriptions differ.
        ValueError: on all ranks, if one of them has an error.
    """
    if world.is_alone:
        descriptions = [description]
    else:
        text = json.dumps(description).encode()
        digest = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
        # An elastic ring may be smaller now than it was when a rank gave its record.
        if set(world.allgather_record(digest)) == {digest} and "error" not in description:
            return
        descriptions = world.allgather_object(description)
    active = [described for described in descriptions if described is not None]
    for rank, described in enumerate(descriptions):
        if described and "error" in described:
            raise ValueError(f"rank {rank}: {described['error']}")
    if any(described != active[0] for described in active):
        raise Disagreement(_difference(descriptions))
    if len(active) < len(descriptions) and not _is_joinable(active[0]):
        raise Disagreement(
            f"{active[0]['call']} was called after another rank had called join; only allreduce, "
            "and not with hvd.Adasum, takes part with ranks that have joined."
        )


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
    if world.is_alone:
        return world.rank
    with together(world):
        return _contribute_zeros(world)


def contribute(world: Ring) -> list[int]:
    """Contribute zeros to the next collective of the other ranks, as a rank that has joined.

    Args:
        world: the ring of the ranks that take part.

    Returns:
        The ranks that have not joined.
    """
    world.allgather_record(_JOINED)
    descriptions = world.allgather_object(None)
    active = [rank for rank, described in enumerate(descriptions) if described is not None]
    if active:
        described = descriptions[active[0]]
        are_equal = all(descriptions[rank] == described for rank in active)
        if are_equal and _is_joinable(described):
            for dtype, size, op in described["parts"]:
                world.allreduce(np.zeros(size, dtype_named(dtype)), op)
    return active


def _contribute_zeros(world: Ring) -> int:
    last_active = world.rank
    while active := contribute(world):
        last_active = max(active)
    return int(world.allreduce(np.array([last_active]), "max")[0])


def _is_joinable(described: Any) -> bool:
    """Return True if ranks that have called `join` take part in a collective."""
    is_reduction = described.get("call") == "allreduce" and "error" not in described
    return is_reduction and described.get("operation") != "adasum"


def _difference(descriptions: Sequence[Any]) -> str:
    """Describe how the collectives of two ranks differ."""
    first = next(rank for rank, described in enumerate(descriptions) if described)
    other = next(
        rank
        for rank, described in enumerate(descriptions)
        if described and described != descriptions[first]
    )
    ours, theirs = descriptions[first], descriptions[other]
    keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    calls = [
        f"rank {rank} called {described.get('call')} with "
        + ", ".join(f"{key} {described.get(key)}" for key in keys)
        for rank, described in ((first, ours), (other, theirs))
    ]
    return f"the ranks do not call the same collectives: {calls[0]}, and {calls[1]}."


# Process-wide state: a lock for each ring, see `world._ring_of`.
@functools.lru_cache(maxsize=1)
def _locks(pid: int) -> weakref.WeakKeyDictionary[Ring, Any]:
    return weakref.WeakKeyDictionary()
