"""Runs in the training process. Horovod's collectives that end later, on PyTorch's tensors."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sparkdl.distribute.ring import Ring
from sparkdl.horovod import arrays
from sparkdl.horovod.process_sets import ProcessSet, global_process_set, ring_of, root_in
from sparkdl.horovod.reduction_ops import Average, Sum, operation
from sparkdl.horovod.torch.handles import Handle, start, synchronize

__all__ = [
    "allgather_async",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "reducescatter_async",
    "sparse_allreduce_async",
]


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `allreduce`, and return its handle for `hvd.synchronize`.

    Args:
        tensor: a tensor, which must not change before the end.
        average, name, op, prescale_factor, postscale_factor, process_set: see `allreduce`.

    Raises:
        ValueError: if a collective of this name is waiting already.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> hvd.synchronize(hvd.allreduce_async(torch.ones(2)))
        tensor([1., 1.])
    """
    reduce = _reduction(operation(op, average), (prescale_factor, postscale_factor))
    return start(reduce, process_set, [tensor], _full_name("allreduce", name), is_one=True)


def allreduce_async_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `allreduce_`, which writes into the tensor, and return its handle.

    Args:
        tensor: a tensor.
        average, name, op, prescale_factor, postscale_factor, process_set: see `allreduce`.
    """
    reduce = _reduction(operation(op, average), (prescale_factor, postscale_factor))
    return start(
        reduce, process_set, [tensor], _full_name("allreduce", name), [tensor], is_one=True
    )


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `grouped_allreduce`, and return its handle.

    Args:
        tensors, average, name, op, prescale_factor, postscale_factor, process_set: see
            `grouped_allreduce`.
    """
    reduce = _reduction(operation(op, average), (prescale_factor, postscale_factor))
    return start(reduce, process_set, tensors, _full_name("allreduce", name))


def grouped_allreduce_async_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `grouped_allreduce_`, which writes into the tensors, and return its handle.

    Args:
        tensors, average, name, op, prescale_factor, postscale_factor, process_set: see
            `grouped_allreduce`.
    """
    reduce = _reduction(operation(op, average), (prescale_factor, postscale_factor))
    return start(reduce, process_set, tensors, _full_name("allreduce", name), tensors)


def sparse_allreduce_async(
    tensor: Any, name: str | None, op: str, process_set: ProcessSet = global_process_set
) -> Callable[[], Any]:
    """Start to gather the values of a sparse tensor, as one process would have them.

    Args:
        tensor: a tensor of the layout `torch.sparse_coo`.
        name: see `allreduce`.
        op: `Average` or `Sum`.
        process_set: the ranks that take part.

    Returns:
        A function without arguments, which waits and returns the sparse tensor.

    Raises:
        ValueError: if `op` is another one.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> rows = torch.tensor([0.0, 5.0, 0.0]).to_sparse()
        >>> hvd.sparse_allreduce_async(rows, "rows", hvd.Sum)().to_dense()
        tensor([0., 5., 0.])
    """
    if op not in (Average, Sum):
        raise ValueError(f"op is {op!r} for a sparse tensor; expected hvd.Average or hvd.Sum.")
    parts = [tensor._values(), tensor._indices().t().contiguous()]
    # With this name a rank whose tensor is dense meets the others, and all get an error.
    handle = start(_gather, process_set, parts, _full_name("allreduce", name))
    shape = tensor.shape

    def finish() -> Any:
        rows, places = synchronize(handle)
        if op == Average:
            rows = (rows / ring_of(process_set).size).to(rows.dtype)
        return torch.sparse_coo_tensor(places.t(), rows, shape, check_invariants=False)

    return finish


def allgather_async(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start `allgather`, and return its handle.

    Args:
        tensor, name, process_set: see `allgather`.
    """
    return start(_gather, process_set, [tensor], _full_name("allgather", name), is_one=True)


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start `grouped_allgather`, and return its handle.

    Args:
        tensors, name, process_set: see `grouped_allgather`.
    """
    return start(_gather, process_set, tensors, _full_name("allgather", name))


def broadcast_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `broadcast`, and return its handle.

    Args:
        tensor, root_rank, name, process_set: see `broadcast`.
    """
    send = _sending(process_set, root_rank)
    return start(send, process_set, [tensor], _full_name("broadcast", name), is_one=True)


def broadcast_async_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `broadcast_`, which writes into the tensor, and return its handle.

    Args:
        tensor, root_rank, name, process_set: see `broadcast`.
    """
    send = _sending(process_set, root_rank)
    return start(send, process_set, [tensor], _full_name("broadcast", name), [tensor], is_one=True)


def alltoall_async(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `alltoall`, and return its handle; its results are the rows and their origins.

    Args:
        tensor, splits, name, process_set: see `alltoall`.

    Raises:
        ValueError: if the splits are no integers.
    """
    try:
        counts = [operator.index(count) for count in (() if splits is None else splits)]
    except TypeError as exc:
        raise ValueError(
            f"splits is {splits!r}; expected integers, the number of rows by rank."
        ) from exc

    def exchange(ring: Ring, rows: Any) -> Any:
        return arrays.alltoall(ring, rows, counts)

    return start(exchange, process_set, [tensor], _full_name("alltoall", name))


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start `reducescatter`, and return its handle.

    Args:
        tensor, name, op, process_set, prescale_factor, postscale_factor: see `reducescatter`.
    """
    scatter = _scattering(op, (prescale_factor, postscale_factor))
    return start(scatter, process_set, [tensor], _full_name("reducescatter", name), is_one=True)


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start `grouped_reducescatter`, and return its handle.

    Args:
        tensors, name, op, process_set, prescale_factor, postscale_factor: see
            `grouped_reducescatter`.
    """
    scatter = _scattering(op, (prescale_factor, postscale_factor))
    return start(scatter, process_set, tensors, _full_name("reducescatter", name))


def _reduction(op: str, scales: tuple[Any, Any]) -> arrays.Reduction:
    return arrays.Reduction(op, *map(float, scales))


def _scattering(op: str, scales: tuple[Any, Any]) -> Callable[..., list[Any]]:
    before, after = map(float, scales)
    return lambda ring, *values: arrays.reducescatter(ring, values, operation(op), before, after)


def _sending(process_set: ProcessSet, root_rank: int) -> Callable[..., list[Any]]:
    root = root_in(process_set, root_rank)
    return lambda ring, *values: arrays.broadcast(ring, values, root)


def _gather(ring: Ring, *values: Any) -> list[Any]:
    return arrays.allgather(ring, values)


def _full_name(call: str, name: str | None) -> str | None:
    return None if name is None else f"{call}.{name}"
