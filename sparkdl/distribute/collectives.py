"""Runs in the training process. Numbers that all ranks agree on."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import numpy as np

from sparkdl.distribute.world import ring

__all__ = [
    "allgather",
    "allgather_object",
    "allreduce",
    "as_given",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "mean",
    "reduce_scatter",
]


def allreduce(value: Any, op: str = "mean") -> Any:
    """The mean, sum, minimum or maximum over all ranks, element by element.

    As with all collectives, every rank of the gang must call it, in the same order, with the same
    shape and dtype; outside a gang there is one rank. All ranks get the same bits.

    Args:
        value: a number, an array of NumPy or JAX, or a tensor of TensorFlow (in a `tf.function`
            too) or PyTorch. Any shape and numeric dtype.
        op: `mean`, `sum`, `min` or `max`. The mean of integers is rounded down.

    Returns:
        The same kind of thing, of the same shape and dtype; a NumPy scalar for a number.

    Raises:
        PeerLostError: another rank is gone, or hangs.
        RuntimeError: another rank has called something else.
        TypeError, ValueError: the value has no numbers, or there is no such `op`.

    Example:
        >>> import numpy as np
        >>> from sparkdl import distribute
        >>> distribute.allreduce(np.array([1.0, 2.0]), op="sum")
        array([1., 2.])
    """
    return as_given(value, lambda array: ring().allreduce(array, op), keeps_shape=True)


def reduce_scatter(value: Any, op: str = "mean") -> Any:
    """This rank's rows of what `allreduce` gives.

    Args:
        value: of at least one dimension, see `allreduce`. Its rows are dealt out in order: with
            `n` rows and `size` ranks, rank `r` gets those from `n * r // size` on.
        op: see `allreduce`.

    Example:
        >>> import numpy as np
        >>> from sparkdl import distribute
        >>> distribute.reduce_scatter(np.array([1.0, 2.0]))
        array([1., 2.])
    """
    return as_given(value, lambda array: ring().reduce_scatter(array, op))


def allgather(value: Any) -> Any:
    """The arrays of all ranks behind each other, along their first dimension.

    Args:
        value: see `allreduce`; ranks may differ in the first dimension. A number counts as one row.

    Example:
        >>> import numpy as np
        >>> from sparkdl import distribute
        >>> distribute.allgather(np.array([1.0, 2.0]))
        array([1., 2.])
    """
    return as_given(
        value, lambda array: np.concatenate([np.atleast_1d(a) for a in ring().allgather(array)])
    )


def broadcast(value: Any, root: int = 0) -> Any:
    """What rank `root` has, on all ranks.

    Args:
        value: see `allreduce`; that of the other ranks only tells shape and dtype.
        root: whose value it is.

    Example:
        >>> import numpy as np
        >>> from sparkdl import distribute
        >>> distribute.broadcast(np.array([1.0, 2.0]))
        array([1., 2.])
    """
    return as_given(value, lambda array: ring().broadcast(array, root), keeps_shape=True)


def allgather_object(value: Any) -> list[Any]:
    """Small Python values of all ranks, by rank. They travel as JSON.

    Raises:
        TypeError: JSON cannot hold it.

    Example:
        >>> from sparkdl import distribute
        >>> distribute.allgather_object({"files": ["a.csv"]})
        [{'files': ['a.csv']}]
    """
    return ring().allgather_object(value)


def broadcast_object(value: Any, root: int = 0) -> Any:
    """What rank `root` gave, on all ranks. It travels as JSON.

    Example:
        >>> from sparkdl import distribute
        >>> distribute.broadcast_object({"epoch": 3})
        {'epoch': 3}
    """
    world = ring()
    return world.allgather_object(value if world.rank == root else None)[root]


def broadcast_variables(variables: Iterable[Any], root: int = 0) -> None:
    """Give all ranks the values that rank `root` has.

    Args:
        variables: of Keras or TensorFlow, the same ones in the same order on all ranks.
        root: whose values they are.

    Example:
        >>> import tensorflow as tf
        >>> from sparkdl import distribute
        >>> distribute.broadcast_variables([tf.Variable(3.0)])
    """
    world = ring()
    for variable in variables if world.size > 1 else ():
        variable.assign(world.broadcast(variable.numpy(), root))


def barrier() -> None:
    """Return when all ranks have called it.

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
    """The average over all ranks, as plain numbers.

    Args:
        value: a number, or numbers by name, with the same names on all ranks.

    Returns:
        The same on all ranks, as a float or a dict.

    Example:
        >>> from sparkdl import distribute
        >>> distribute.mean(0.5), distribute.mean({"loss": 0.25})
        (0.5, {'loss': 0.25})
    """
    numbers = dict(value) if isinstance(value, Mapping) else {"": value}
    names = sorted(numbers)
    means = ring().allreduce(np.array([float(numbers[name]) for name in names]))
    numbers = dict(zip(names, means.tolist(), strict=True))
    return numbers if isinstance(value, Mapping) else numbers[""]


def as_given(value: Any, collective: Callable[[Any], Any], keeps_shape: bool = False) -> Any:
    """What a collective of arrays makes of a value of whichever framework."""
    framework = type(value).__module__.partition(".")[0]
    if framework == "tensorflow":
        return _of_tensorflow(value, collective, keeps_shape)
    if framework == "torch":
        import torch

        # NumPy has no bfloat16 of its own.
        wide = value.detach().to("cpu", torch.float32 if value.dtype == torch.bfloat16 else None)
        return torch.as_tensor(collective(wide.numpy())).to(value.device, value.dtype)
    result = collective(np.asarray(value))
    return sys.modules["jax"].numpy.asarray(result) if framework.startswith("jax") else result[()]


def _of_tensorflow(value: Any, collective: Callable[[Any], Any], keeps_shape: bool) -> Any:
    import tensorflow as tf

    plain = tf.autograph.experimental.do_not_convert(collective)
    result = tf.numpy_function(plain, [value], value.dtype)
    result.set_shape(value.shape if keeps_shape else [None, *value.shape[1:]])
    return result
