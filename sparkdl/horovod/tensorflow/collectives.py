"""Runs in the training process. Horovod's collectives on TensorFlow tensors, with their gradients.

The gradients are those of Horovod 0.28 (horovod/tensorflow/mpi_ops.py): each rank is taken to
compute the same loss, of which the gradients are averages over the ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from sparkdl.distribute.ring import Ring
from sparkdl.horovod import arrays
from sparkdl.horovod.process_sets import ProcessSet, global_process_set, ring_of, root_in
from sparkdl.horovod.reduction_ops import Average, Sum, operation
from sparkdl.horovod.tensorflow.compression import Compression
from sparkdl.horovod.tensorflow.session_order import collective_scope
from sparkdl.horovod.tensorflow.tensors import call_on_arrays

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]


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
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Return the average, sum, minimum, maximum, product or Adasum over the ranks.

    Args:
        tensor: a tensor of any shape and numeric dtype, the same on all ranks; or
            `tf.IndexedSlices`, whose rows are gathered.
        average: the older form of `op`: True for the average, False for the sum.
        op: `Average`, `Sum`, `Min`, `Max`, `Product` or `Adasum`; by default the average.
        compression: an attribute of `Compression`.
        prescale_factor: factor applied before the reduction.
        postscale_factor: factor applied after the reduction.
        process_set: the ranks that take part.
        name: name by which ranks find each other in a graph of `tf.compat.v1`, unless the tensor's.
        device_dense, device_sparse, ignore_name_scope: have no effect.

    Raises:
        tf.errors.FailedPreconditionError: on all ranks, if they call different collectives.
        NotImplementedError: for `tf.IndexedSlices` with an operation or a factor that they do not
            have.

    Example:
        >>> import tensorflow as tf, sparkdl.horovod as hvd
        >>> hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum).numpy()
        array([1., 2.], dtype=float32)
    """
    return grouped_allreduce(
        [tensor],
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        name=name,
    )[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Return the results of `allreduce` for several tensors, which travel together.

    Args:
        tensors: see `allreduce`.
        average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor,
            process_set, ignore_name_scope, name: see `allreduce`.

    Example:
        >>> import tensorflow as tf, sparkdl.horovod as hvd
        >>> [float(t) for t in hvd.grouped_allreduce([tf.constant(1.0), tf.constant(2.0)])]
        [1.0, 2.0]
    """
    op = operation(op, average)
    results: list[Any] = list(tensors)
    sparse = [i for i, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [i for i in range(len(tensors)) if i not in sparse]
    if sparse:
        _check_sparse(op, prescale_factor, postscale_factor)
        reduced = _sparse_allreduce([tensors[i] for i in sparse], op, process_set, name)
        for i, result in zip(sparse, reduced, strict=True):
            results[i] = result
    if dense:
        values = [tf.convert_to_tensor(tensors[i]) for i in dense]
        sent, contexts = zip(*map(compression.compress, values), strict=True)
        scales = prescale_factor, postscale_factor
        reduced = _dense_allreduce(list(sent), op, scales, process_set, name)
        for i, result, context in zip(dense, reduced, contexts, strict=True):
            results[i] = compression.decompress(result, context)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: str = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Return this rank's rows of the result of `allreduce`; the first ranks may have one row more.

    Args:
        tensor: a tensor of at least one dimension.
        op: `Average` or `Sum`.
        compression, prescale_factor, postscale_factor, process_set, device_dense, name,
            ignore_name_scope: see `allreduce`.

    Example:
        >>> import tensorflow as tf, sparkdl.horovod as hvd
        >>> hvd.reducescatter(tf.constant([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    scales = prescale_factor, postscale_factor
    return _reducescatter([tensor], compression, operation(op), scales, process_set, name)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Return the results of `reducescatter` for several tensors.

    Args:
        tensors: see `reducescatter`.
        compression, op, process_set, prescale_factor, postscale_factor, device_dense: see
            `reducescatter`.
    """
    if not tensors:
        return []
    scales = prescale_factor, postscale_factor
    return _reducescatter(tensors, compression, operation(op), scales, process_set)


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensors of the ranks, concatenated; they may differ in the first dimension.

    Args:
        tensor: a tensor of at least one dimension.
        process_set: the ranks that take part.
        name, ignore_name_scope: see `allreduce`.

    Example:
        >>> import tensorflow as tf, sparkdl.horovod as hvd
        >>> hvd.allgather(tf.constant([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
    """
    return grouped_allgather([tensor], name, process_set=process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the results of `allgather` for several tensors.

    Args:
        tensors: see `allgather`.
        name, ignore_name_scope, process_set: see `allgather`.
    """
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    shapes = [_any_rows(tensor) for tensor in tensors]

    def gradient(*upstream: Any) -> list[Any]:
        averages = [allreduce(grad, op=Average, process_set=process_set) for grad in upstream]
        lengths = allgather(
            tf.stack([tf.shape(tensor)[0] for tensor in tensors])[None], process_set=process_set
        )
        before = tf.reduce_sum(lengths[: ring_of(process_set).rank], 0)
        return [
            average[before[i] : before[i] + tf.shape(tensor)[0]]
            for i, (average, tensor) in enumerate(zip(averages, tensors, strict=True))
        ]

    def gather(ring: Ring, *values: Any) -> list[Any]:
        return arrays.allgather(ring, values)

    return _differentiable(gather, process_set, tensors, shapes, gradient, name)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the tensor of rank `root_rank`, on all ranks.

    Args:
        tensor: a tensor; on other ranks it determines shape and dtype only.
        root_rank: the rank whose tensor is returned.
        process_set: the ranks that take part.
        name, ignore_name_scope: see `allreduce`.

    Example:
        >>> import tensorflow as tf, sparkdl.horovod as hvd
        >>> float(hvd.broadcast(tf.constant(3.0), root_rank=0))
        3.0
    """
    tensor = tf.convert_to_tensor(tensor)

    def gradient(upstream: Any) -> Any:
        average = allreduce(upstream, op=Average, process_set=process_set)
        is_root = ring_of(process_set).rank == root_in(process_set, root_rank)
        return average if is_root else average * 0  # TensorFlow would prune zeros_like(average).

    def exchange(ring: Ring, value: Any) -> list[Any]:
        return arrays.broadcast(ring, [value], root_in(process_set, root_rank))

    return _differentiable(exchange, process_set, [tensor], [tensor.shape], gradient, name)[0]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the rows that all ranks have for this rank, in the order of the ranks.

    Args:
        tensor: a tensor of at least one dimension; ranks may differ in the first one.
        splits: number of rows for each rank; by default equally many.
        process_set: the ranks that take part.
        name, ignore_name_scope: see `allreduce`.

    Returns:
        The rows; with `splits`, a pair of the rows and how many of them come from each rank.

    Example:
        >>> import tensorflow as tf, sparkdl.horovod as hvd
        >>> rows, counts = hvd.alltoall(tf.constant([1.0, 2.0]), splits=[2])
        >>> rows.numpy(), counts.numpy()
        (array([1., 2.], dtype=float32), array([2], dtype=int32))
    """
    tensor = tf.convert_to_tensor(tensor)
    counts = tf.constant([], tf.int32) if splits is None else tf.convert_to_tensor(splits)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def exchanged(rows: Any, counts: Any) -> Any:
        received, origins = call_on_arrays(
            arrays.alltoall,
            process_set,
            [rows, counts],
            [rows.dtype, tf.int32],
            [_any_rows(rows), [None]],
        )

        def gradient(upstream: Any, _: Any) -> Any:
            return alltoall(upstream, origins, process_set=process_set)[0], None

        return (received, origins), gradient

    with collective_scope(arrays.alltoall, [tensor], name):
        received, origins = exchanged(tensor, counts)
    return received if splits is None else (received, origins)


def _dense_allreduce(
    tensors: Sequence[Any], op: str, scales: Any, process_set: ProcessSet, name: str | None = None
) -> list[Any]:
    def reduce(ring: Ring, *values: Any) -> list[Any]:
        return arrays.Reduction(op, *scales)(ring, *values)

    def gradient(*upstream: Any) -> list[Any]:
        return _dense_allreduce(upstream, op, scales, process_set)

    shapes = [tensor.shape for tensor in tensors]
    return _differentiable(reduce, process_set, tensors, shapes, gradient, name)


def _reducescatter(
    tensors: Sequence[Any],
    compression: Any,
    op: str,
    scales: tuple[float, float],
    process_set: ProcessSet,
    name: str | None = None,
) -> list[Any]:
    def reduce(ring: Ring, *values: Any) -> list[Any]:
        return arrays.reducescatter(ring, values, op, *scales)

    def gradient(*upstream: Any) -> list[Any]:
        factor = scales[0] * scales[1] * (ring_of(process_set).size if op == Sum else 1)
        return [allgather(grad * factor, process_set=process_set) for grad in upstream]

    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    sent, contexts = zip(*map(compression.compress, values), strict=True)
    shapes = [_any_rows(tensor) for tensor in sent]
    reduced = _differentiable(reduce, process_set, list(sent), shapes, gradient, name)
    pairs = zip(reduced, contexts, strict=True)
    return [compression.decompress(result, context) for result, context in pairs]


def _sparse_allreduce(slices: Any, op: str, process_set: ProcessSet, name: str | None) -> list[Any]:
    """Gather the rows of all ranks, as one process would have them for all examples."""
    values = grouped_allgather([each.values for each in slices], name, process_set=process_set)
    indices = grouped_allgather([each.indices for each in slices], name, process_set=process_set)
    if op == Average:
        values = [rows / tf.cast(ring_of(process_set).size, rows.dtype) for rows in values]
    return [
        tf.IndexedSlices(rows, places, each.dense_shape)
        for each, rows, places in zip(slices, values, indices, strict=True)
    ]


def _any_rows(tensor: Any) -> Any:
    """Return the static shape of a tensor with another number of rows."""
    has_rank = tensor.shape.rank is not None
    return (
        tf.TensorShape([None]).concatenate(tensor.shape[1:]) if has_rank else tf.TensorShape(None)
    )


def _check_sparse(op: str, prescale_factor: float, postscale_factor: float) -> None:
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"op is {op!r} for tf.IndexedSlices; expected hvd.Average or hvd.Sum. Convert them "
            "with sparse_as_dense=True or tf.convert_to_tensor."
        )
    if (prescale_factor, postscale_factor) != (1.0, 1.0):
        raise NotImplementedError(
            "tf.IndexedSlices have no prescale_factor and no postscale_factor. Convert them with "
            "tf.convert_to_tensor."
        )


def _differentiable(
    function: Callable[..., list[Any]],
    process_set: ProcessSet,
    tensors: Sequence[Any],
    shapes: Sequence[Any],
    gradient: Callable[..., Any],
    name: str | None = None,
) -> list[Any]:
    """Return the results of a function of arrays that has a gradient.

    Args:
        function, process_set, tensors, shapes: see `call_on_arrays`; dtypes do not change.
        gradient: returns the gradients of the tensors from those of the results.
        name: see `collective_scope`.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def called(*values: Any) -> Any:
        dtypes = [value.dtype for value in values]
        return call_on_arrays(function, process_set, values, dtypes, shapes), gradient

    with collective_scope(function, tensors, name):
        return list(called(*tensors))
