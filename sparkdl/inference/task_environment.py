"""Runs in a Spark task. The environment in which a model runs: the GPU and cores of the task."""

import os
from collections.abc import Mapping
from typing import Any

from pyspark import TaskContext

from sparkdl.cuda_visibility import as_seen_by_executor, visible_devices
from sparkdl.devices import gpus
from sparkdl.inference.worker_gpu import hold_gpu

__all__ = ["TaskEnvironment", "num_cores"]

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
            assigned = [hold_gpu(devices)]
        # Other workers may share the GPU.
        defaults = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        defaults |= dict.fromkeys(_THREADS, str(num_cores()))
        self._variables = {k: v for k, v in defaults.items() if k not in os.environ}
        self._variables |= {**(variables or {}), **visible_devices(assigned, detect_gpus)}
        self._before: list[dict[str, str | None]] = []

    def __enter__(self) -> None:
        self._before.append({name: os.environ.get(name) for name in self._variables})
        os.environ.update(self._variables)

    def __exit__(self, *_: Any) -> None:
        for name, value in self._before.pop().items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
