"""Runs in the training process. The functions of `horovod.keras` that differ from TensorFlow's.

They have other arguments, in another order, than those of the same names in `horovod.tensorflow`.
"""

from typing import Any

from sparkdl.horovod.process_sets import ProcessSet, global_process_set
from sparkdl.horovod.reduction_ops import Average
from sparkdl.horovod.tensorflow import collectives, training
from sparkdl.horovod.tensorflow.compression import Compression

__all__ = [
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "reducescatter",
]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: str = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer average its gradients over all ranks.

    Args:
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
            gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients,
            num_groups, groups, process_set, scale_local_gradients: see
            `sparkdl.horovod.tensorflow.DistributedOptimizer`.

    Example:
        >>> import keras, sparkdl.horovod.keras as hvd
        >>> float(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)).learning_rate)
        0.5
    """
    return training.DistributedOptimizer(
        optimizer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any
) -> Any:
    """Make an optimizer average its gradients, but for those of some layers.

    Args:
        optimizer, *args, **kwargs: see `DistributedOptimizer`.
        local_layers: see `sparkdl.horovod.tensorflow.PartialDistributedOptimizer`.

    Example:
        >>> import keras, sparkdl.horovod.keras as hvd
        >>> own = keras.layers.Dense(1)
        >>> optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=own)
    """
    optimizer = DistributedOptimizer(optimizer, *args, **kwargs)
    return training.with_local_layers(optimizer, local_layers)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: str | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Return the average, sum, minimum, maximum, product or Adasum over the ranks.

    Args:
        value: a number, array or tensor, of the same shape on all ranks.
        average, prescale_factor, postscale_factor, op, compression: see
            `sparkdl.horovod.tensorflow.allreduce`.
        name: has no effect.

    Example:
        >>> import sparkdl.horovod.keras as hvd
        >>> float(hvd.allreduce(2.0, "loss"))
        2.0
    """
    return collectives.allreduce(
        value,
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Return the values of the ranks, concatenated; they may differ in the first dimension.

    Args:
        value: an array or tensor of at least one dimension.
        name: has no effect.
    """
    return collectives.allgather(value)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value of rank `root_rank`, on all ranks.

    Args:
        value: a number, array or tensor; on other ranks it determines shape and dtype only.
        root_rank: the rank whose value is returned.
        name: has no effect.
    """
    return collectives.broadcast(value, root_rank)


def reducescatter(value: Any, name: str | None = None, op: str = Average) -> Any:
    """Return this rank's rows of the average or sum over the ranks.

    Args:
        value: an array or tensor of at least one dimension, of the same shape on all ranks.
        op: `Average` or `Sum`.
        name: has no effect.
    """
    return collectives.reducescatter(value, op=op)
