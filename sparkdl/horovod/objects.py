"""Runs in the training process. Horovod's collectives of Python objects; they travel as JSON."""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np

from sparkdl.distribute.ring import Ring
from sparkdl.horovod.agreement import agree, dtype_named, together
from sparkdl.horovod.process_sets import ProcessSet, global_process_set, ring_of, root_in

__all__ = [
    "allgather_object",
    "allgather_over",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_over",
    "decoded",
    "encoded",
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
    sent = _agreed(world, {"call": "broadcast_object", "root": root}, obj, world.rank == root)
    return decoded(world.allgather_object(sent)[root])


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
    sent = _agreed(world, {"call": "allgather_object"}, obj, True)
    return [decoded(each) for each in world.allgather_object(sent)]


def _agreed(world: Ring, description: dict[str, Any], obj: Any, is_sent: bool) -> Any:
    """Return what this rank sends, once all ranks are known to call the same.

    Args:
        world: the ring of the ranks that take part.
        description: see `agree`.
        obj: the object of this rank.
        is_sent: this rank sends its object.
    """
    sent = None
    try:
        sent = encoded(obj) if is_sent else None
    except TypeError as exc:
        description = {"error": str(exc)}
    agree(world, description)
    return sent


def encoded(obj: Any) -> Any:
    """Return an object as JSON can hold it: dicts have any keys, and tuples stay tuples.

    Args:
        obj: numbers, text, bytes, arrays of numbers, lists, tuples, sets and dicts.

    Raises:
        TypeError: if the object has other parts.
    """
    if isinstance(obj, dict):
        return {"dict": [[encoded(key), encoded(value)] for key, value in obj.items()]}
    for kind in (list, tuple, set):
        if isinstance(obj, kind):
            return {kind.__name__: [encoded(item) for item in obj]}
    if obj is None or isinstance(obj, bool | int | float | str):
        return obj
    if isinstance(obj, bytes):
        return {"bytes": base64.b64encode(obj).decode()}
    array = np.asarray(obj) if hasattr(obj, "dtype") else np.empty(0, object)
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise TypeError(
            f"got a {type(obj).__name__}; expected numbers, text, bytes, arrays of numbers, lists, "
            "tuples, sets and dicts: objects travel as JSON and are never pickled. Send the "
            "numbers that the object consists of."
        )
    if array.ndim == 0 and array.dtype.kind in "biuf":
        return array.item()
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    contents = base64.b64encode(array.tobytes()).decode()
    return {"array": [array.dtype.name, list(array.shape), contents]}


def decoded(value: Any) -> Any:
    """Return the object that `encoded` got; of an array of any framework, an array of NumPy."""
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    if kind == "bytes":
        return base64.b64decode(items)
    if kind == "array":
        dtype, shape, contents = items
        return np.frombuffer(base64.b64decode(contents), dtype_named(dtype)).reshape(shape).copy()
    if kind == "dict":
        return {decoded(key): decoded(item) for key, item in items}
    return {"list": list, "tuple": tuple, "set": set}[kind](decoded(item) for item in items)
