"""Runs in a Spark task. Reserve the GPUs of one training process: Spark's, or by file locks."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdl.cluster.gpus.locks import (
    DevicesTakenError,
    LockedDevices,
    locked_devices,
    released_devices,
)
from sparkdl.cluster.plan import Plan
from sparkdl.devices import gpus
from sparkdl.host.cuda_visibility import as_seen_by_executor, share, visible_devices

if TYPE_CHECKING:
    from pyspark import TaskContext


@dataclass(frozen=True)
class AssignedGpus:
    """The GPUs of a process.

    Attributes:
        environ: the variable that shows the process these GPUs and no others.
        locks: descriptors that the process must hold until its end.
        are_own: the process has GPUs, and sees no others. A framework numbers them from 0.
    """

    environ: Mapping[str, str]
    locks: tuple[int, ...] = ()
    are_own: bool = False


def spark_gpus(context: "TaskContext | None") -> Sequence[str] | None:
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
    has_ended: Callable[[], bool] = lambda: False,
) -> Iterator[AssignedGpus]:
    """Reserve the GPUs of a process, and yield them.

    Args:
        plan: the plan, with the number of GPUs of each process.
        run_id: the run that reserves them, named to other runs that want the same GPUs.
        addresses: the GPUs that Spark assigned; None if Spark schedules none.
        local: the local rank and local world size in a gang, whose ranks share a host's GPUs.
        has_ended: returns True if the gang has ended, so that waiting for GPUs is pointless.

    Raises:
        DevicesTakenError: if there are too few GPUs, if other runs hold them, or if Spark assigned
            a GPU that this executor may not see.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = plan.resources.num_gpus
    default = plan.resources.default_gpus
    holder = f"run {run_id}, process {os.getpid()}"
    if count == 0:
        yield AssignedGpus(visible_devices([], detect=False))
    elif addresses is not None:
        with released_devices(_seen_by_executor(addresses, visible), holder) as devices:
            yield _assignment(devices)
    elif plan.detect_gpus and (count or local or default != "visible"):
        # Spark schedules no GPUs here, so that other runs may hold some of them.
        candidates = gpus()
        if count is None:
            candidates = share(candidates, *local) if local else candidates
            count = min(1, len(candidates)) if default == "one" else len(candidates)
        wait_s = plan.start_timeout_s if local else None
        with locked_devices(candidates, int(count), holder, wait_s, has_ended) as devices:
            yield _assignment(devices)
    else:
        yield AssignedGpus(visible_devices([], plan.detect_gpus))


def _seen_by_executor(addresses: Sequence[str], visible: str | None) -> list[str]:
    try:
        return as_seen_by_executor(addresses, visible)
    except ValueError as exc:
        raise DevicesTakenError(str(exc)) from exc


def _assignment(devices: LockedDevices) -> AssignedGpus:
    environ = visible_devices(devices.names, detect=False)
    return AssignedGpus(environ, tuple(devices.descriptors), are_own=bool(devices.names))
