"""Runs in the training process. Collective operations on the values of all ranks."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from sparkdl.distribute.graph_order import call_in_order
from sparkdl.distribute.groups import Group
from sparkdl.distribute.keras_logs import as_array
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.rows import split_rows
from sparkdl.distribute.shard_marks import is_shard
from sparkdl.distribute.world import ring

__all__ = [
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "call_with_numpy",
    "mean",
    "reduce_scatter",
]


def allreduce(value: Any, op: str = "mean", *, group: Group | None = None) -> Any:
    """Return the mean, sum, minimum, maximum or product over all ranks, element by element.

    As with all collectives, every rank of the gang must call it, in the same order, with the same
    shape and dtype; outside a gang there is one rank. All ranks get the same bits.

    Args:
        value: a number, a NumPy or JAX array, or a TensorFlow tensor (also inside a
            `tf.function`) or PyTorch tensor. Any shape and numeric dtype.
        op: `mean`, `sum`, `min`, `max` or `product`. The mean of integers is rounded down. Sums and
            products that the dtype cannot hold wrap around or become infinite, as in NumPy.
        group: the ranks that take part, see `distribute.group`; all ranks by default.

    Returns:
        A value of the same type, shape and dtype; a NumPy scalar if `value` is a number.

    Raises:
        PeerLostError: if another rank is lost or hangs.
        RuntimeError: if another rank has called a different collective, or with another shape or
            dtype.
        TypeError, ValueError: if the value is not numeric, or `op` is unknown.

    Example:
        >>> import numpy as np
        >>> from sparkdl import distribute
        >>> distribute.allreduce(np.array([1.0, 2.0]), op="sum")
        array([1., 2.])
    """
    return call_with_numpy(value, lambda array: _ring(group).allreduce(array, op), keeps_shape=True)


def reduce_scatter(value: Any, op: str = "mean", *, group: Group | None = None) -> Any:
    """Return this rank's rows of the result of `allreduce`.

    Args:
        value: see `allreduce`; at least one dimension. The rows are assigned in order, as
            `numpy.array_split` does: the first ranks have one row more than the last ones.
        op, group: see `allreduce`.

    Example:
        >>> import numpy as np
        >>> from sparkdl import distribute
        >>> distribute.reduce_scatter(np.array([1.0, 2.0]))
        array([1., 2.])
    """
    return call_with_numpy(value, lambda array: _ring(group).reduce_scatter(array, op))


def allgather(value: Any, *, group: Group | None = None) -> Any:
    """Return the arrays of all ranks, concatenated along their first dimension.

    Args:
        value: see `allreduce`; ranks may differ in the first dimension. A number counts as one row.
        group: see `allreduce`.

    Example:
        >>> import numpy as np
        >>> from sparkdl import distribute
        >>> distribute.allgather(np.array([1.0, 2.0]))
        array([1., 2.])
    """
    return call_with_numpy(
        value,
        lambda array: _ring(group).allgather_rows(np.atleast_1d(array))[0],
    )


def alltoall(value: Any, splits: Sequence[int] | None = None, *, group: Group | None = None) -> Any:
    """Return the rows that all ranks have for this rank, in the order of the ranks.

    Args:
        value: see `allreduce`; at least one dimension. Ranks may differ in the first one.
        splits: number of rows for each rank, in the order of the rows; by default equally many.
        group: see `allreduce`; `splits` has a number for each of its ranks.

    Raises:
        ValueError: if the splits do not add up to the number of rows.

    Example:
        >>> import numpy as np
        >>> from sparkdl import distribute
        >>> distribute.alltoall(np.array([1.0, 2.0]))
        array([1., 2.])
    """

    def exchange(array: Any) -> Any:
        world = _ring(group)
        counts = [len(array) // world.size] * world.size if splits is None else splits
        return world.alltoall_rows(array, counts)[0]

    return call_with_numpy(value, exchange)


def broadcast(value: Any, root: int = 0, *, group: Group | None = None) -> Any:
    """Return the value of rank `root`, on all ranks.

    Args:
        value: see `allreduce`; on other ranks than `root` it determines shape and dtype only.
        root: the rank whose value is returned.
        group: see `allreduce`.

    Example:
        >>> import numpy as np
        >>> from sparkdl import distribute
        >>> distribute.broadcast(np.array([1.0, 2.0]))
        array([1., 2.])
    """
    place = root if group is None else group.place(root)
    return call_with_numpy(
        value, lambda array: _ring(group).broadcast(array, place), keeps_shape=True
    )


def allgather_object(value: Any) -> list[Any]:
    """Return the Python values of all ranks, by rank. Small values only: they travel as JSON.

    Raises:
        TypeError: if the value cannot be written as JSON.

    Example:
        >>> from sparkdl import distribute
        >>> distribute.allgather_object({"files": ["a.csv"]})
        [{'files': ['a.csv']}]
    """
    return ring().allgather_object(value)


def broadcast_object(value: Any, root: int = 0) -> Any:
    """Return the Python value of rank `root`, on all ranks. The value travels as JSON.

    Example:
        >>> from sparkdl import distribute
        >>> distribute.broadcast_object({"epoch": 3})
        {'epoch': 3}
    """
    world = ring()
    return world.allgather_object(value if world.rank == root else None)[root]


def broadcast_variables(variables: Iterable[Any], root: int = 0) -> None:
    """Assign the values of rank `root` to the variables of all ranks.

    Args:
        variables: Keras or TensorFlow variables, the same in the same order on all ranks. Those of
            an optimizer of which each rank has a part, see `optimizer(shard=True)`, stay as they
            are.
        root: the rank whose values are assigned.

    Example:
        >>> import tensorflow as tf
        >>> from sparkdl import distribute
        >>> distribute.broadcast_variables([tf.Variable(3.0)])
    """
    world = ring()
    for variable in variables if world.size > 1 else ():
        if not is_shard(variable):
            variable.assign(world.broadcast(variable.numpy(), root))


def barrier() -> None:
    """Block until all ranks have called `barrier`.

    Example:
        >>> from sparkdl import distribute
        >>> distribute.barrier()
    """
    ring().barrier()


@overload
def mean(value: float) -> float: ...
@overload
def mean(value: Mapping[str, float]) -> dict[str, float]: ...
def mean(value: float | Mapping[str, float]) -> float | dict[str, float]:
    """Return the average over all ranks, as plain numbers.

    Args:
        value: a number, or a mapping from names to numbers, with the same names on all ranks.

    Returns:
        The same average on all ranks: a float, or a dict by name.

    Example:
        >>> from sparkdl import distribute
        >>> distribute.mean(0.5), distribute.mean({"loss": 0.25})
        (0.5, {'loss': 0.25})
    """
    if not isinstance(value, Mapping):
        return float(mean({"": value})[""])
    names = sorted(value)
    arrays = [as_array(value[name]).astype(np.float64) for name in names]
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    parts = split_rows(ring().allreduce(flat), [array.size for array in arrays])
    means = [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]
    pairs = zip(names, means, strict=True)
    return {name: each if each.ndim else float(each) for name, each in pairs}


def _ring(group: Group | None) -> Ring:
    return ring() if group is None else group.ring


def call_with_numpy(value: Any, collective: Callable[[Any], Any], keeps_shape: bool = False) -> Any:
    """Call a collective of NumPy arrays with a value of any supported framework.

    Args:
        value: a number, an array or a tensor, see `allreduce`.
        collective: takes and returns a NumPy array.
        keeps_shape: the result has the shape of `value`; otherwise its first dimension differs.

    Returns:
        The result as a value of the framework of `value`.
    """
    framework = type(value).__module__.partition(".")[0]
    if framework == "tensorflow":
        return _call_with_tensorflow(value, collective, keeps_shape)
    if framework == "torch":
        import torch

        # NumPy has no bfloat16 of its own.
        wide = value.detach().to("cpu", torch.float32 if value.dtype == torch.bfloat16 else None)
        return torch.as_tensor(collective(wide.numpy())).to(value.device, value.dtype)
    result = collective(np.asanyarray(value))  # A masked array is refused later.
    return sys.modules["jax"].numpy.asarray(result) if framework.startswith("jax") else result[()]


def _call_with_tensorflow(value: Any, collective: Callable[[Any], Any], keeps_shape: bool) -> Any:
    result = call_in_order(collective, [value], value.dtype)
    result.set_shape(value.shape if keeps_shape else [None, *value.shape[1:]])
    return result
