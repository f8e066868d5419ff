"""Runs in the training process. The counterpart of `import horovod.torch as hvd`.

A program changes its import line, and is started by `experiment.horovod(train, num_workers=4)`.
Names, arguments and defaults are those of Horovod 0.28 (horovod.readthedocs.io). The extra `torch`
installs PyTorch.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError:
    from sparkdl.host.optional_packages import require as _require

    _require("torch", "sparkdl.horovod.torch")
    raise

import sparkdl.horovod.torch.elastic as elastic
from sparkdl.horovod import ranks as _ranks
from sparkdl.horovod.absent_names import absent_names as _absent_names
from sparkdl.horovod.process_sets import ProcessSet, global_process_set, remove_process_set
from sparkdl.horovod.ranks import *  # noqa: F403
from sparkdl.horovod.reduction_ops import Adasum, Average, Max, Min, Product, Sum
from sparkdl.horovod.torch import async_collectives, collectives, objects, process_sets
from sparkdl.horovod.torch.async_collectives import *  # noqa: F403
from sparkdl.horovod.torch.collectives import *  # noqa: F403
from sparkdl.horovod.torch.compression import Compression
from sparkdl.horovod.torch.handles import HorovodInternalError, poll, synchronize
from sparkdl.horovod.torch.objects import *  # noqa: F403
from sparkdl.horovod.torch.optimizer import DistributedOptimizer
from sparkdl.horovod.torch.process_sets import *  # noqa: F403
from sparkdl.horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    *(name for name in _ranks.__all__ if name not in process_sets.__all__),
    *async_collectives.__all__,
    *collectives.__all__,
    *objects.__all__,
    *process_sets.__all__,
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "elastic",
    "global_process_set",
    "poll",
    "remove_process_set",
    "synchronize",
]

__getattr__ = _absent_names(__name__, __all__)
