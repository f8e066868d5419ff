"""Runs in a Spark task. Reserve the GPUs of one training process: Spark's, or by file locks."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark import TaskContext

from sparkdl.cluster.gpus.locks import (
    DevicesTakenError,
    LockedDevices,
    locked_devices,
    released_devices,
)
from sparkdl.cluster.plan import Plan
from sparkdl.cuda_visibility import as_seen_by_executor, share, visible_devices
from sparkdl.devices import gpus

__all__ = ["AssignedGpus", "assigned_gpus", "no_gpus", "spark_gpus"]


@dataclass(frozen=True)
class AssignedGpus:
    """The GPUs of a process.

    Attributes:
        environ: the variable that shows the process these GPUs and no others.
        locks: descriptors that the process must hold until its end.
    """

    environ: Mapping[str, str]
    locks: tuple[int, ...] = ()


def spark_gpus(context: TaskContext | None) -> Sequence[str] | None:
    """Return the addresses of the GPUs that Spark assigned to a task; None if it schedules none."""
    resources = context.resources() if context else {}
    return list(resources["gpu"].addresses) if "gpu" in resources else None


@contextlib.contextmanager
def no_gpus() -> Iterator[AssignedGpus]:
    """Yield the variable that hides all GPUs from a process."""
    yield AssignedGpus(visible_devices([], detect=False))


@contextlib.contextmanager
def assigned_gpus(
    plan: Plan,
    run_id: str,
    addresses: Sequence[str] | None,
    local: tuple[int, int] | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> Iterator[AssignedGpus]:
    """Reserve the GPUs of a process, and yield them.

    Args:
        plan: the plan, with the number of GPUs of each process.
        run_id: the run that reserves them, named to other runs that want the same GPUs.
        addresses: the GPUs that Spark assigned; None if Spark schedules none.
        local: the local rank and local world size in a gang, whose ranks share a host's GPUs.
        ended: returns True if the gang has ended, so that waiting for GPUs is pointless.

    Raises:
        DevicesTakenError: if there are too few GPUs, if other runs hold them, or if Spark assigned
            a GPU that this executor may not see.
    """
    own, count = os.environ.get("CUDA_VISIBLE_DEVICES"), plan.resources.num_gpus
    default = plan.resources.default_gpus
    holder = f"run {run_id}, process {os.getpid()}"
    if count == 0:
        yield AssignedGpus(visible_devices([], detect=False))
    elif addresses is not None:
        with released_devices(_seen_by_executor(addresses, own), holder) as devices:
            yield _shown(devices)
    elif plan.detect_gpus and (count or local or default != "visible"):
        # Spark schedules no GPUs here, so that other runs may hold some of them.
        candidates = gpus()
        if count is None:
            candidates = share(candidates, *local) if local else candidates
            count = min(1, len(candidates)) if default == "one" else len(candidates)
        wait_s = plan.start_timeout_s if local else None
        with locked_devices(candidates, int(count), holder, wait_s, ended) as devices:
            yield _shown(devices)
    else:
        yield AssignedGpus(visible_devices([], plan.detect_gpus))


def _seen_by_executor(addresses: Sequence[str], own: str | None) -> list[str]:
    try:
        return as_seen_by_executor(addresses, own)
    except ValueError as exc:
        raise DevicesTakenError(str(exc)) from exc


def _shown(devices: LockedDevices) -> AssignedGpus:
    environ = visible_devices(devices.names, detect=False)
    return AssignedGpus(environ, tuple(devices.descriptors))
