"""Runs in the training process. Horovod's collectives of Python objects; they travel as JSON."""

from collections.abc import Callable
from typing import Any

from sparkdl.distribute.ring import Ring
from sparkdl.files.typed_json import decoded, encoded
from sparkdl.horovod.agreement import agree, together
from sparkdl.horovod.process_sets import ProcessSet, global_process_set, ring_of, root_in

__all__ = [
    "allgather_object",
    "allgather_over",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_over",
]


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of rank `root_rank`. It travels as JSON; Horovod pickles it.

    Args:
        obj: numbers, text, bytes, arrays, lists, tuples, sets and dicts.
        root_rank: the rank whose object is returned.
        process_set: the ranks that take part.
        session, name: have no effect.

    Raises:
        ValueError: on all ranks, if the object has other parts, or the ranks disagree about the
            root.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.broadcast_object({"hello": 123, 0: (1, 2)})
        {'hello': 123, 0: (1, 2)}
    """
    world, root = ring_of(process_set), root_in(process_set, root_rank)
    with together(world):
        return broadcast_over(world, obj, root)


def broadcast_over(world: Ring, obj: Any, root: int) -> Any:
    """Return the object of a rank of a ring, see `broadcast_object`.

    Args:
        world: the ring of the ranks that take part.
        obj: the object.
        root: rank in that ring.
    """
    encoded_object = _encode_if_agreed(
        world, {"call": "broadcast_object", "root": root}, obj, world.rank == root
    )
    return decoded(world.allgather_object(encoded_object)[root])


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that calls `broadcast_object` with an object.

    Args:
        root_rank, session, name, process_set: see `broadcast_object`.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.broadcast_object_fn()([1, 2])
        [1, 2]
    """
    return lambda obj: broadcast_object(obj, root_rank, process_set=process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the objects of all ranks, by rank, see `broadcast_object`.

    Args:
        obj, session, name, process_set: see `broadcast_object`.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.allgather_object({"loss": 0.5})
        [{'loss': 0.5}]
    """
    world = ring_of(process_set)
    with together(world):
        return allgather_over(world, obj)


def allgather_over(world: Ring, obj: Any) -> list[Any]:
    """Return the objects of all ranks of a ring, see `broadcast_over`."""
    sent = _encode_if_agreed(world, {"call": "allgather_object"}, obj, True)
    return [decoded(each) for each in world.allgather_object(sent)]


def _encode_if_agreed(world: Ring, description: dict[str, Any], obj: Any, is_sent: bool) -> Any:
    """Return what this rank sends, once all ranks are known to call the same.

    Args:
        world: the ring of the ranks that take part.
        description: see `agree`.
        obj: the object of this rank.
        is_sent: this rank sends its object.
    """
    encoded_object = None
    try:
        encoded_object = encoded(obj) if is_sent else None
    except TypeError as exc:
        description = {"error": str(exc)}
    agree(world, description)
    return encoded_object
