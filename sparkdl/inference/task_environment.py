"""Runs in a Spark task. The environment in which a model runs: the GPU and cores of the task."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pyspark import TaskContext

from sparkdl.cluster.gpus.locks import hold_shared_device
from sparkdl.devices import gpus
from sparkdl.host.cuda_visibility import as_seen_by_executor, visible_devices
from sparkdl.host.variables import set_variables

# TensorFlow reads these variables when it creates its threads (process_util.cc).
_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def num_cores() -> int:
    """Return the number of cores of this task; 1 outside a task."""
    context = TaskContext.get()
    return context.cpus() if context else 1


class TaskEnvironment:
    """A context manager that sets the variables of a model, and restores the environment.

    Spark reuses a Python worker for later tasks, which must not inherit the GPUs of this task. A
    framework that was started before in this worker keeps its GPUs.

    Args:
        detect_gpus: use a GPU of this host if Spark assigned none to the task.
        variables: further variables of the framework.

    Raises:
        ValueError: if Spark assigned a GPU that is not visible to this executor.
    """

    def __init__(self, detect_gpus: bool, variables: Mapping[str, str] | None = None) -> None:
        context = TaskContext.get()
        resources = context.resources() if context else {}
        addresses = resources["gpu"].addresses if "gpu" in resources else ()
        assigned = as_seen_by_executor(addresses, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if context and not assigned and detect_gpus and (devices := gpus()):
            assigned = [_hold_gpu(devices)]
        # Other workers may share the GPU.
        defaults = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        defaults |= dict.fromkeys(_THREADS, str(num_cores()))
        self._variables = {k: v for k, v in defaults.items() if k not in os.environ}
        self._variables |= {**(variables or {}), **visible_devices(assigned, detect_gpus)}
        # It may be entered again inside its own block.
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        self._entered.append(set_variables(self._variables))
        self._entered[-1].__enter__()

    def __exit__(self, *_: Any) -> None:
        self._entered.pop().__exit__(None, None, None)


def _hold_gpu(devices: Sequence[str]) -> str:
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
