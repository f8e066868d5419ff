"""Runs in the training process. The counterpart of `import horovod.tensorflow as hvd`.

A program changes its import line, and is started by `experiment.horovod(train, num_workers=4)`.
Names, arguments and defaults are those of Horovod 0.28 (horovod.readthedocs.io); arguments that
only configure Horovod's engine (`name`, `device_dense`, `groups` ...) are accepted and have no
effect.
"""

from sparkdl.horovod import ranks as _ranks
from sparkdl.horovod.absent_names import absent_names as _absent_names
from sparkdl.horovod.agreement import join
from sparkdl.horovod.objects import allgather_object, broadcast_object, broadcast_object_fn
from sparkdl.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    barrier,
    global_process_set,
    remove_process_set,
)
from sparkdl.horovod.ranks import *  # noqa: F403
from sparkdl.horovod.reduction_ops import Adasum, Average, Max, Min, Product, Sum
from sparkdl.horovod.tensorflow import collectives, elastic, rank_ops, variables
from sparkdl.horovod.tensorflow.collectives import *  # noqa: F403
from sparkdl.horovod.tensorflow.compression import Compression
from sparkdl.horovod.tensorflow.rank_ops import *  # noqa: F403
from sparkdl.horovod.tensorflow.training import (
    DistributedGradientTape,
    DistributedOptimizer,
    PartialDistributedGradientTape,
    PartialDistributedOptimizer,
)
from sparkdl.horovod.tensorflow.variables import *  # noqa: F403

# Imported on first use, because they import Keras, which is slow.
_LATE = {"SyncBatchNormalization": "sparkdl.horovod.tensorflow.sync_batch_norm"}

__all__ = [
    *_LATE,
    *_ranks.__all__,
    *collectives.__all__,
    *rank_ops.__all__,
    *variables.__all__,
    "Adasum",
    "Average",
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
    "add_process_set",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_object_fn",
    "callbacks",  # noqa: F405 A module, imported on first use: it imports Keras, which is slow.
    "elastic",
    "global_process_set",
    "join",
    "remove_process_set",
]

__getattr__ = _absent_names(__name__, __all__, late=_LATE)
