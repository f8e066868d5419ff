"""Runs in a Spark task. Reserve the GPUs of one training process: Spark's, or by file locks."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

from pyspark import TaskContext

from sparkdl.cluster.gpus.locks import locked_devices
from sparkdl.cluster.plan import Plan
from sparkdl.cuda_visibility import as_seen_by_executor, share, visible_devices
from sparkdl.devices import gpus

__all__ = ["assigned_gpus", "no_gpus", "spark_gpus"]


def spark_gpus(context: TaskContext | None) -> Sequence[str] | None:
    """Return the addresses of the GPUs that Spark assigned to a task; None if it schedules none."""
    resources = context.resources() if context else {}
    return list(resources["gpu"].addresses) if "gpu" in resources else None


@contextlib.contextmanager
def no_gpus() -> Iterator[dict[str, str]]:
    """Yield the variable that hides all GPUs from a process."""
    yield visible_devices([], detect=False)


@contextlib.contextmanager
def assigned_gpus(
    plan: Plan,
    run_id: str,
    addresses: Sequence[str] | None,
    local: tuple[int, int] | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, str]]:
    """Reserve the GPUs of a process; yield the variable that shows it these GPUs and no others.

    Args:
        plan: the plan, with the number of GPUs of each process.
        run_id: the run that reserves them, named to other runs that want the same GPUs.
        addresses: the GPUs that Spark assigned; None if Spark schedules none.
        local: the local rank and local world size in a gang, whose ranks share a host's GPUs.
        ended: returns True if the gang has ended, so that waiting for GPUs is pointless.

    Raises:
        DevicesTakenError: if there are too few GPUs, or other runs hold them.
        ValueError: if Spark assigned a GPU that this executor may not see.
    """
    own, count = os.environ.get("CUDA_VISIBLE_DEVICES"), plan.resources.num_gpus
    default = plan.resources.default_gpus
    if count == 0:
        yield visible_devices([], detect=False)
    elif addresses is not None:
        yield visible_devices(as_seen_by_executor(addresses, own), detect=False)
    elif plan.detect_gpus and (count or local or default != "visible"):
        # Spark schedules no GPUs here, so that other runs may hold some of them.
        devices = gpus()
        if count is None:
            devices = share(devices, *local) if local else devices
            count = min(1, len(devices)) if default == "one" else len(devices)
        wait_s = plan.start_timeout_s if local else None
        holder = f"run {run_id}, process {os.getpid()}"
        with locked_devices(devices, count, holder, wait_s, ended) as taken:
            yield visible_devices(taken, detect=False)
    else:
        yield visible_devices([], plan.detect_gpus)
