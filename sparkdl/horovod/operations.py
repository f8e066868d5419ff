"""Runs in the training process. Horovod's collectives, and what a rank may ask about itself."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sparkdl import context, distribute
from sparkdl.distribute.collectives import as_given
from sparkdl.distribute.gradient_reducer import Reducer
from sparkdl.distribute.ring import OPERATIONS
from sparkdl.distribute.world import is_joined, ring
from sparkdl.horovod.join_operation import announced

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

# What an allreduce makes of the values of all ranks.
Average, Sum, Min, Max = "mean", "sum", "min", "max"


class Compression:
    """In how many bits floating-point values travel: as they are, or in sixteen.

    Example:
        >>> import numpy as np, sparkdl.horovod as hvd
        >>> hvd.allreduce(np.float32(0.5), compression=hvd.Compression.fp16)
        np.float32(0.5)
    """

    none = None
    fp16 = "float16"
    bf16 = "bfloat16"


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the other ranks; returns when all have called it.

    Args:
        comm: None; the ranks are those of the gang.
        process_sets: None, see `check_process_set`.

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
    """Leave the ring. Ranks that still want something of this one fail."""
    if is_initialized():
        ring().close()


def is_initialized() -> bool:
    """Whether this process has joined the others."""
    return is_joined()


def rank() -> int:
    """This process among all, from 0; of an elastic gang among those that are there."""
    return ring().rank if is_initialized() else context.current().rank


def size() -> int:
    """How many processes train together, see `rank`."""
    return ring().size if is_initialized() else context.current().world_size


def local_rank() -> int:
    """This process among those of its host, from 0."""
    return context.current().local_rank


def local_size() -> int:
    """How many processes train on this host."""
    return context.current().local_world_size


def cross_rank() -> int:
    """This host among those that have a process with this local rank, from 0.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.init()
        >>> hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()
        (0, 1, True)
    """
    return _hosts().index(ring().nodes[ring().rank])


def cross_size() -> int:
    """How many hosts have a process with this local rank."""
    return len(_hosts())


def is_homogeneous() -> bool:
    """Whether all hosts have equally many processes."""
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
    """The average, sum, minimum or maximum over all ranks.

    Args:
        tensor: of TensorFlow, also `tf.IndexedSlices`, or whatever `distribute.allreduce` takes.
        average, op: what to make of them; by default the average.
        compression: one of `Compression`.
        prescale_factor, postscale_factor: what to multiply with before and after.
        device_dense, device_sparse, name: have no effect.
        process_set: None, see `check_process_set`.

    Example:
        >>> import numpy as np, sparkdl.horovod as hvd
        >>> hvd.allreduce(np.array([1.0, 2.0]), op=hvd.Sum)
        array([1., 2.])
    """
    check_process_set(process_set)
    op = operation(op, average)
    if hasattr(tensor, "indices") and hasattr(tensor, "values"):  # tf.IndexedSlices
        return Reducer(ring(), op)([tensor])[0]
    sent = tensor if prescale_factor == 1.0 else tensor * prescale_factor
    reduced = _differentiable(sent, op, compression)
    return reduced if postscale_factor == 1.0 else reduced * postscale_factor


def grouped_allreduce(tensors: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
    """`allreduce` of each of several tensors.

    Example:
        >>> import numpy as np, sparkdl.horovod as hvd
        >>> hvd.grouped_allreduce([np.float64(1), np.float64(2)])
        [np.float64(1.0), np.float64(2.0)]
    """
    return [allreduce(tensor, *args, **kwargs) for tensor in tensors]


def allgather(tensor: Any, name: str | None = None, process_set: Any = None) -> Any:
    """The tensors of all ranks behind each other; they may differ in the first dimension."""
    check_process_set(process_set)
    return distribute.allgather(tensor)


def broadcast(tensor: Any, root_rank: int, name: str | None = None, process_set: Any = None) -> Any:
    """The tensor of rank `root_rank`, on all ranks."""
    check_process_set(process_set)
    return distribute.broadcast(tensor, root_rank)


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: Any = None, inplace: bool = False
) -> None:
    """Give all ranks the values of rank `root_rank`; eagerly, see `broadcast_global_variables`."""
    check_process_set(process_set)
    distribute.broadcast_variables(variables, root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Any = None,
) -> Any:
    """What rank `root_rank` gave, on all ranks; it travels as JSON, where Horovod pickled it."""
    check_process_set(process_set)
    return distribute.broadcast_object(obj, root_rank)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: Any = None
) -> list[Any]:
    """What all ranks gave, by rank; it travels as JSON, where Horovod pickled it."""
    check_process_set(process_set)
    return distribute.allgather_object(obj)


def barrier(process_set: Any = None) -> None:
    """Return when all ranks have called it."""
    check_process_set(process_set)
    distribute.barrier()


def check_process_set(process_set: Any) -> None:
    """Refuse sets of some of the ranks, which Horovod had: a ring is of all.

    Raises:
        ValueError: it is not None.
    """
    if process_set is not None:
        raise ValueError(
            f"process_set is {process_set!r}; expected None: all ranks of the gang take part."
        )


def operation(op: str | None, average: bool | None = None) -> str:
    """What `op` and the older `average` mean together.

    Raises:
        ValueError: both are given, or we have no such operation.
    """
    if op is not None and average is not None:
        raise ValueError("op and average were given; expected one of them, which should be op.")
    found = Average if op is None and average in (None, True) else op or Sum
    if found not in OPERATIONS:
        raise ValueError(f"op is {op!r}; expected hvd.Average, Sum, Min or Max.")
    return found


def _differentiable(tensor: Any, op: str, wire: str | None) -> Any:
    """The reduction; in TensorFlow its gradient is reduced alike."""

    def reduce(array: Any) -> Any:
        narrow = wire if array.dtype.kind == "f" else None
        sent = array.astype(_dtype(narrow)) if narrow else np.asarray(array, order="C")
        return announced(ring(), sent, op).astype(array.dtype, copy=False)

    if not type(tensor).__module__.startswith("tensorflow"):
        return as_given(tensor, reduce, keeps_shape=True)
    import tensorflow as tf

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduced(value: Any) -> Any:
        result = as_given(value, reduce, keeps_shape=True)
        return result, lambda upstream: _differentiable(upstream, op, wire)

    return reduced(tf.convert_to_tensor(tensor))


def _dtype(name: str) -> Any:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return ml_dtypes.bfloat16


def _hosts() -> list[str]:
    """The hosts that have a process with this one's local rank, in the order of their ranks."""
    nodes, me = ring().nodes, ring().rank
    before = nodes[:me].count(nodes[me])
    return [node for node in dict.fromkeys(nodes) if nodes.count(node) > before]
