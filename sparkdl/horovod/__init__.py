"""Runs in the training process. Horovod's API over the ring: `import sparkdl.horovod as hvd`.

A program for `horovod.tensorflow`, `horovod.tensorflow.keras` or `horovod.keras` changes its import
line, and is started by `experiment.horovod(train, num_workers=4)`. Names, arguments and defaults
are those of Horovod 0.28 (horovod.readthedocs.io); arguments that only configure Horovod's engine
(`name`, `device_dense`, `groups` ...) are accepted and have no effect.
"""

import importlib
from typing import Any

from sparkdl.horovod import elastic
from sparkdl.horovod.join_operation import join
from sparkdl.horovod.operations import (
    Average,
    Compression,
    Max,
    Min,
    Sum,
    allgather,
    allgather_object,
    allreduce,
    barrier,
    broadcast,
    broadcast_object,
    broadcast_variables,
    cross_rank,
    cross_size,
    grouped_allreduce,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from sparkdl.horovod.training import (
    BroadcastGlobalVariablesHook,
    DistributedGradientTape,
    DistributedOptimizer,
    broadcast_global_variables,
)

__all__ = [
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "elastic",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]


def __getattr__(name: str) -> Any:
    if name == "callbacks":  # Imported on first use, because they import Keras, which is slow.
        return importlib.import_module("sparkdl.horovod.callbacks")
    raise AttributeError(
        f"module 'sparkdl.horovod' has no attribute {name!r}. Expected one of {', '.join(__all__)}."
    )
