"""Runs in a Spark task.

The GPUs of one training process: assigned by Spark, or held by our locks.
"""

import contextlib
import os
from collections.abc import Callable, Iterator

from pyspark import TaskContext

from sparkdl.cluster.gpus.locks import locked_devices
from sparkdl.cluster.plan import Plan
from sparkdl.cuda_visibility import as_seen_by_executor, share, visible_devices
from sparkdl.devices import gpus

__all__ = ["assigned_gpus"]


@contextlib.contextmanager
def assigned_gpus(
    plan: Plan,
    run_id: str,
    context: TaskContext | None,
    local: tuple[int, int] | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, str]]:
    """Take a process's GPUs; yields the variable that shows it these and no others.

    Args:
        plan: how many it is to get.
        run_id: who takes them, told to those who find them taken.
        context: of this task, with the addresses that Spark assigned.
        local: the local rank and local world size in a gang, whose ranks share a host's GPUs.
        ended: whether the gang has ended, so that waiting for GPUs is pointless.

    Raises:
        DevicesTakenError: there are too few, or other runs hold them.
        ValueError: Spark assigned a GPU that this executor may not see.
    """
    own, count = os.environ.get("CUDA_VISIBLE_DEVICES"), plan.resources.num_gpus
    resources = context.resources() if context else {}
    if count == 0:
        yield visible_devices([], detect=False)
    elif "gpu" in resources:
        assigned = as_seen_by_executor(resources["gpu"].addresses, own)
        yield visible_devices(assigned, detect=False)
    elif plan.detect_gpus and (count or local or plan.kind == "mirrored"):
        # Spark schedules no GPUs here: what other runs hold is not ours.
        devices = gpus()
        if count is None:
            devices = share(devices, *local) if local else devices
            # TensorFlowOnSpark's programs are made for one, whatever else the host has.
            count = min(1, len(devices)) if plan.kind == "tfos" else len(devices)
        wait_s = plan.start_timeout_s if local else None
        holder = f"run {run_id}, process {os.getpid()}"
        with locked_devices(devices, count, holder, wait_s, ended) as taken:
            yield visible_devices(taken, detect=False)
    else:
        yield visible_devices([], plan.detect_gpus)
