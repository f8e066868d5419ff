"""Runs in the training process. The counterpart of `import horovod.tensorflow as hvd`.

A program changes its import line, and is started by `experiment.horovod(train, num_workers=4)`.
Names, arguments and defaults are those of Horovod 0.28 (horovod.readthedocs.io); arguments that
only configure Horovod's engine (`name`, `device_dense`, `groups` ...) are accepted and have no
effect.
"""

import importlib
from typing import Any

from sparkdl.horovod.agreement import join
from sparkdl.horovod.objects import allgather_object, broadcast_object, broadcast_object_fn
from sparkdl.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    barrier,
    global_process_set,
    remove_process_set,
)
from sparkdl.horovod.ranks import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)
from sparkdl.horovod.reduction_ops import Adasum, Average, Max, Min, Product, Sum
from sparkdl.horovod.tensorflow import elastic
from sparkdl.horovod.tensorflow.collectives import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from sparkdl.horovod.tensorflow.compression import Compression
from sparkdl.horovod.tensorflow.training import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
    PartialDistributedOptimizer,
)
from sparkdl.horovod.tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
)

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

# Imported on first use, because they import Keras, which is slow.
_LAZY = {
    "SyncBatchNormalization": "sparkdl.horovod.tensorflow.sync_batch_norm",
    "callbacks": "sparkdl.horovod.tensorflow.callbacks",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}. Expected one of {', '.join(__all__)}."
        )
    module = importlib.import_module(_LAZY[name])
    return module if name == "callbacks" else getattr(module, name)
