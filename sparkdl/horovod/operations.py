"""Runs in the training process. Horovod's collectives, and the rank and size of this process."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sparkdl import context, distribute
from sparkdl.distribute.collectives import call_with_numpy
from sparkdl.distribute.gradient_reducer import Reducer
from sparkdl.distribute.ring import OPERATIONS
from sparkdl.distribute.world import is_joined, ring
from sparkdl.horovod.join_operation import announced_allreduce

__all__ = [
    "Average",
    "Compression",
    "Max",
    "Min",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "check_process_set",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "operation",
    "rank",
    "shutdown",
    "size",
]

# The operations of an allreduce.
Average, Sum, Min, Max = "mean", "sum", "min", "max"


class Compression:
    """The dtype in which floating-point values travel: their own, or one of 16 bits.

    Example:
        >>> import numpy as np, sparkdl.horovod as hvd
        >>> hvd.allreduce(np.float32(0.5), compression=hvd.Compression.fp16)
        np.float32(0.5)
    """

    none = None
    fp16 = "float16"
    bf16 = "bfloat16"


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the other ranks; block until all ranks have called `init`.

    Args:
        comm: must be None: the ranks are those of the gang.
        process_sets: must be None, see `check_process_set`.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.init()
        >>> hvd.rank(), hvd.size()
        (0, 1)
    """
    if comm is not None:
        raise ValueError(f"comm is {comm!r}; expected None: the ranks are those of the gang.")
    check_process_set(process_sets)
    ring()


def shutdown() -> None:
    """Leave the ring. A rank that still communicates with this one fails."""
    if is_initialized():
        ring().close()


def is_initialized() -> bool:
    """Return True if this process has joined the other ranks."""
    return is_joined()


def rank() -> int:
    """Return the rank of this process, from 0; in an elastic gang, among the ranks present."""
    return ring().rank if is_initialized() else context.current().rank


def size() -> int:
    """Return the number of processes that train together, see `rank`."""
    return ring().size if is_initialized() else context.current().world_size


def local_rank() -> int:
    """Return the rank of this process among the processes of its host, from 0."""
    return context.current().local_rank


def local_size() -> int:
    """Return the number of processes that train on this host."""
    return context.current().local_world_size


def cross_rank() -> int:
    """Return the index of this host among the hosts that have a process with this local rank.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.init()
        >>> hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()
        (0, 1, True)
    """
    return _hosts().index(ring().nodes[ring().rank])


def cross_size() -> int:
    """Return the number of hosts that have a process with this local rank."""
    return len(_hosts())


def is_homogeneous() -> bool:
    """Return True if all hosts have the same number of processes."""
    nodes = ring().nodes
    return len({nodes.count(node) for node in nodes}) == 1


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = None,
) -> Any:
    """Return the average, sum, minimum or maximum over all ranks.

    Args:
        tensor: a TensorFlow tensor, `tf.IndexedSlices`, or a value for `distribute.allreduce`.
        average: the older form of `op`: True for the average, False for the sum.
        op: `Average`, `Sum`, `Min` or `Max`; by default the average.
        compression: an attribute of `Compression`.
        prescale_factor: factor applied before the reduction.
        postscale_factor: factor applied after the reduction.
        device_dense, device_sparse, name: have no effect.
        process_set: must be None, see `check_process_set`.

    Example:
        >>> import numpy as np, sparkdl.horovod as hvd
        >>> hvd.allreduce(np.array([1.0, 2.0]), op=hvd.Sum)
        array([1., 2.])
    """
    check_process_set(process_set)
    op = operation(op, average)
    if hasattr(tensor, "indices") and hasattr(tensor, "values"):  # tf.IndexedSlices
        return Reducer(ring(), op)([tensor])[0]
    scaled = tensor if prescale_factor == 1.0 else tensor * prescale_factor
    reduced = _differentiable_allreduce(scaled, op, compression)
    return reduced if postscale_factor == 1.0 else reduced * postscale_factor


def grouped_allreduce(tensors: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Return the results of `allreduce` for several tensors.

    Args:
        tensors: see `allreduce`.
        *args, **kwargs: further arguments of `allreduce`.

    Example:
        >>> import numpy as np, sparkdl.horovod as hvd
        >>> hvd.grouped_allreduce([np.float64(1), np.float64(2)])
        [np.float64(1.0), np.float64(2.0)]
    """
    return [allreduce(tensor, *args, **kwargs) for tensor in tensors]


def allgather(tensor: Any, name: str | None = None, process_set: Any = None) -> Any:
    """Return the tensors of all ranks, concatenated; they may differ in the first dimension."""
    check_process_set(process_set)
    return distribute.allgather(tensor)


def broadcast(tensor: Any, root_rank: int, name: str | None = None, process_set: Any = None) -> Any:
    """Return the tensor of rank `root_rank`, on all ranks."""
    check_process_set(process_set)
    return distribute.broadcast(tensor, root_rank)


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: Any = None, inplace: bool = False
) -> None:
    """Assign the values of rank `root_rank` to the variables of all ranks, in eager mode.

    In graph mode, use `broadcast_global_variables`.
    """
    check_process_set(process_set)
    distribute.broadcast_variables(variables, root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Any = None,
) -> Any:
    """Return the object of rank `root_rank`. It travels as JSON; Horovod pickles it."""
    check_process_set(process_set)
    return distribute.broadcast_object(obj, root_rank)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: Any = None
) -> list[Any]:
    """Return the objects of all ranks, by rank. They travel as JSON; Horovod pickles them."""
    check_process_set(process_set)
    return distribute.allgather_object(obj)


def barrier(process_set: Any = None) -> None:
    """Block until all ranks have called `barrier`."""
    check_process_set(process_set)
    distribute.barrier()


def check_process_set(process_set: Any) -> None:
    """Validate that no process set is given: Horovod has sets of ranks, the ring has all ranks.

    Raises:
        ValueError: if `process_set` is not None.
    """
    if process_set is not None:
        raise ValueError(
            f"process_set is {process_set!r}; expected None: all ranks of the gang take part."
        )


def operation(op: str | None, average: bool | None = None) -> str:
    """Return the operation that `op` and the older argument `average` select.

    Raises:
        ValueError: if both are given, or the operation is not supported.
    """
    if op is not None and average is not None:
        raise ValueError("op and average were given; expected only one of them, preferably op.")
    selected = Average if op is None and average in (None, True) else op or Sum
    if selected not in OPERATIONS:
        raise ValueError(f"op is {op!r}; expected hvd.Average, Sum, Min or Max.")
    return selected


def _differentiable_allreduce(tensor: Any, op: str, wire_dtype: str | None) -> Any:
    """Return the reduction of a tensor; in TensorFlow, gradients of it are reduced the same way."""

    def reduce(array: Any) -> Any:
        narrow = wire_dtype if array.dtype.kind == "f" else None
        sent = array.astype(_dtype(narrow)) if narrow else np.asarray(array, order="C")
        return announced_allreduce(ring(), sent, op).astype(array.dtype, copy=False)

    if not type(tensor).__module__.startswith("tensorflow"):
        return call_with_numpy(tensor, reduce, keeps_shape=True)
    import tensorflow as tf

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduced(value: Any) -> Any:
        result = call_with_numpy(value, reduce, keeps_shape=True)
        return result, lambda upstream: _differentiable_allreduce(upstream, op, wire_dtype)

    return reduced(tf.convert_to_tensor(tensor))


def _dtype(name: str) -> Any:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return ml_dtypes.bfloat16


def _hosts() -> list[str]:
    """Return the hosts that have a process with this local rank, in the order of their ranks."""
    nodes, own_rank = ring().nodes, ring().rank
    own_local_rank = nodes[:own_rank].count(nodes[own_rank])
    return [node for node in dict.fromkeys(nodes) if nodes.count(node) > own_local_rank]
