"""Runs in a Spark task. Hold a GPU for a Python worker, where Spark does not schedule GPUs."""

import os
from collections.abc import Sequence

from pyspark import TaskContext

from sparkdl.cluster.gpus.locks import hold_shared_device

__all__ = ["hold_gpu"]


def hold_gpu(devices: Sequence[str]) -> str:
    """Return the GPU of this Python worker, which it holds until it ends or runs a trial.

    A framework cannot give a GPU back, so that a worker keeps its GPU for later tasks. Spark ends
    a worker that has had no task for a minute. A trial of the same worker needs a GPU for its own
    process, and would wait for this one.

    Args:
        devices: the GPUs of this host.
    """
    context = TaskContext.get()
    stage = context.stageId() if context else None
    return hold_shared_device(devices, f"predictions of stage {stage}, process {os.getpid()}")
