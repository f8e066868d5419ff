"""Runs in a Spark task. Hold a GPU for a Python worker, where Spark does not schedule GPUs."""

import os
from collections.abc import Sequence
from functools import cache

from pyspark import TaskContext

from sparkdl.cluster.gpus.locks import hold_shared_device

__all__ = ["hold_gpu"]


def hold_gpu(devices: Sequence[str]) -> str:
    """Return the GPU of this Python worker, which it holds until it ends.

    A framework cannot give a GPU back, so that a worker keeps its GPU for later tasks. Spark ends
    a worker that has had no task for a minute.

    Args:
        devices: the GPUs of this host.
    """
    return _held(tuple(devices))


@cache
def _held(devices: tuple[str, ...]) -> str:
    context = TaskContext.get()
    stage = context.stageId() if context else None
    return hold_shared_device(devices, f"predictions of stage {stage}, process {os.getpid()}")
