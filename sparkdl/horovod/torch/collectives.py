"""Runs in the training process. Horovod's collectives on PyTorch's tensors, with their gradients.

The gradients are those of Horovod 0.28 (horovod/torch/mpi_ops.py): each rank is taken to compute
the same loss, of which the gradients are averages over the ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sparkdl.horovod.agreement import agree
from sparkdl.horovod.name_order import order_of
from sparkdl.horovod.process_sets import ProcessSet, global_process_set, ring_of
from sparkdl.horovod.reduction_ops import Average, Sum
from sparkdl.horovod.torch import async_collectives
from sparkdl.horovod.torch.compression import Compression
from sparkdl.horovod.torch.handles import Handle, call, horovod_errors, synchronize

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]


class _Collective(torch.autograd.Function):  # type: ignore[misc]
    """A collective with a gradient.

    Its arguments are a function that starts the collective of some tensors, a function that returns
    the gradients of the tensors from those of the results, and the tensors.
    """

    @staticmethod
    def forward(ctx: Any, start: Any, gradient: Any, *tensors: Any) -> tuple[Any, ...]:
        ctx.gradient = gradient
        outputs = synchronize(start(tensors))
        results = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
        ctx.mark_non_differentiable(
            *[r for r in results if not (r.is_floating_point() or r.is_complex())]
        )
        return results

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Any, ...]:
        return None, None, *ctx.gradient(upstream)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the average, sum, minimum, maximum, product or Adasum over the ranks.

    Args:
        tensor: a tensor of any shape and numeric dtype, the same on all ranks.
        average: the older form of `op`: True for the average, False for the sum.
        name: name by which the ranks find each other, where they may call collectives in different
            orders; by default the number of the call.
        compression: an attribute of `Compression`.
        op: `Average`, `Sum`, `Min`, `Max`, `Product` or `Adasum`; by default the average.
        prescale_factor: factor applied before the reduction.
        postscale_factor: factor applied after the reduction.
        process_set: the ranks that take part.

    Raises:
        HorovodInternalError: on all ranks, if they call different collectives; if a rank is lost.
        ValueError: if an argument is invalid.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Sum)
        tensor([1., 2.])
    """
    factors = prescale_factor, postscale_factor
    return grouped_allreduce([tensor], average, name, compression, op, *factors, process_set)[0]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Write the result of `allreduce` into the tensor, and return the tensor.

    Args:
        tensor, average, name, op, prescale_factor, postscale_factor, process_set: see `allreduce`.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> total = torch.tensor([1.0, 2.0])
        >>> hvd.allreduce_(total) is total
        True
    """
    factors = prescale_factor, postscale_factor
    start = async_collectives.allreduce_async_
    return synchronize(start(tensor, average, name, op, *factors, process_set))


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the results of `allreduce` for several tensors, which travel together.

    Args:
        tensors: see `allreduce`.
        average, name, compression, op, prescale_factor, postscale_factor, process_set: see
            `allreduce`.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> hvd.grouped_allreduce([torch.tensor(1.0), torch.tensor(2.0)])
        [tensor(1.), tensor(2.)]
    """
    options = average, name, op, prescale_factor, postscale_factor, process_set

    def start(values: Sequence[Any]) -> Handle:
        return async_collectives.grouped_allreduce_async(values, *options)

    def gradient(upstream: Sequence[Any]) -> list[Any]:
        return grouped_allreduce(upstream, average, None, Compression.none, *options[2:])

    return _compressed(start, gradient, tensors, compression)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Write the results of `grouped_allreduce` into the tensors, and return the tensors.

    Args:
        tensors, average, name, op, prescale_factor, postscale_factor, process_set: see
            `grouped_allreduce`.
    """
    factors = prescale_factor, postscale_factor
    start = async_collectives.grouped_allreduce_async_
    return list(synchronize(start(tensors, average, name, op, *factors, process_set)))


def allgather(
    tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the tensors of the ranks, concatenated; they may differ in the first dimension.

    Args:
        tensor: a tensor of at least one dimension.
        name, process_set: see `allreduce`.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> hvd.allgather(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the results of `allgather` for several tensors.

    Args:
        tensors: see `allgather`.
        name, process_set: see `allreduce`.
    """
    tensors = list(tensors)
    if not tensors:
        return []
    lengths = [tensor.shape[0] if tensor.dim() else 1 for tensor in tensors]

    def start(values: Sequence[Any]) -> Handle:
        return async_collectives.grouped_allgather_async(values, name, process_set)

    def gradient(upstream: Sequence[Any]) -> list[Any]:
        averages = grouped_allreduce(upstream, process_set=process_set)
        by_rank = allgather(torch.tensor([lengths]), process_set=process_set)
        before = by_rank[: ring_of(process_set).rank].sum(0).tolist()
        return [
            average[begin : begin + length]
            for average, begin, length in zip(averages, before, lengths, strict=True)
        ]

    return list(_Collective.apply(start, gradient, *tensors))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensor of rank `root_rank`, on all ranks.

    Args:
        tensor: a tensor; on other ranks it determines shape and dtype only.
        root_rank: the rank whose tensor is returned.
        name, process_set: see `allreduce`.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> hvd.broadcast(torch.tensor([1.0, 2.0]), root_rank=0)
        tensor([1., 2.])
    """

    def start(values: Sequence[Any]) -> Handle:
        return async_collectives.broadcast_async(values[0], root_rank, name, process_set)

    def gradient(upstream: Sequence[Any]) -> list[Any]:
        average = allreduce(upstream[0], process_set=process_set)
        is_root = process_set.ranks[ring_of(process_set).rank] == root_rank
        return [average if is_root else torch.zeros_like(average)]

    return _Collective.apply(start, gradient, tensor)[0]


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Write the tensor of rank `root_rank` into the tensor of each rank, and return the tensor.

    Args:
        tensor, root_rank, name, process_set: see `broadcast`.
    """
    return synchronize(async_collectives.broadcast_async_(tensor, root_rank, name, process_set))


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the rows that all ranks have for this rank, in the order of the ranks.

    Args:
        tensor: a tensor of at least one dimension; ranks may differ in the first one.
        splits: number of rows for each rank; by default equally many.
        name, process_set: see `allreduce`.

    Returns:
        The rows; with `splits`, a pair of the rows and how many of them come from each rank.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> hvd.alltoall(torch.tensor([1.0, 2.0]), splits=[2])
        (tensor([1., 2.]), tensor([2], dtype=torch.int32))
    """
    origins: list[Any] = []

    def start(values: Sequence[Any]) -> Handle:
        handle = async_collectives.alltoall_async(values[0], splits, name, process_set)
        origins.append(synchronize(handle)[1])
        return handle

    def gradient(upstream: Sequence[Any]) -> list[Any]:
        return [alltoall(upstream[0], origins[0], process_set=process_set)[0]]

    results = _Collective.apply(start, gradient, tensor)
    return results[0] if splits is None else results


def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Return this rank's rows of the result of `allreduce`; the first ranks may have one row more.

    Args:
        tensor: a tensor of at least one dimension.
        op: `Average` or `Sum`.
        name, compression, process_set, prescale_factor, postscale_factor: see `allreduce`.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> hvd.reducescatter(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    factors = prescale_factor, postscale_factor
    return grouped_reducescatter([tensor], name, compression, op, process_set, *factors)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    compression: Any = Compression.none,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Return the results of `reducescatter` for several tensors.

    Args:
        tensors: see `reducescatter`.
        name, compression, op, process_set, prescale_factor, postscale_factor: see `reducescatter`.
    """
    options = name, op, process_set, prescale_factor, postscale_factor

    def start(values: Sequence[Any]) -> Handle:
        return async_collectives.grouped_reducescatter_async(values, *options)

    def gradient(upstream: Sequence[Any]) -> list[Any]:
        factor = prescale_factor * postscale_factor
        factor *= ring_of(process_set).size if op == Sum else 1
        return grouped_allgather([each * factor for each in upstream], process_set=process_set)

    return _compressed(start, gradient, tensors, compression)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Block until all ranks have called `barrier`.

    Args:
        process_set: the ranks that take part.

    Example:
        >>> import sparkdl.horovod.torch as hvd
        >>> hvd.barrier()
    """
    call(lambda ring: agree(ring, {"call": "barrier"}), process_set)


def join(device: int = -1) -> int:
    """Contribute zeros to the reductions of the other ranks, until all ranks have called `join`.

    For ranks whose rows have run out. The others may call `allreduce`, and train with a
    `DistributedOptimizer`; the zeros of this rank count in averages.

    Args:
        device: has no effect.

    Returns:
        The last rank that called `join`.

    Example:
        >>> import sparkdl.horovod.torch as hvd
        >>> hvd.join()
        0
    """
    with horovod_errors():
        return order_of(global_process_set).join()


def _compressed(
    start: Callable[..., Handle],
    gradient: Callable[..., Any],
    tensors: Sequence[Any],
    compression: Any,
) -> list[Any]:
    """Return the results of a collective of tensors that travel in another dtype."""
    tensors = list(tensors)
    if not tensors:
        return []
    sent, contexts = zip(*map(compression.compress, tensors), strict=True)
    pairs = zip(_Collective.apply(start, gradient, *sent), contexts, strict=True)
    return [compression.decompress(result, context) for result, context in pairs]
