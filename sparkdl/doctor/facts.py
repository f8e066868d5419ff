"""Runs on the driver and in Spark tasks. Collect what a host offers to processes of sparkdl."""

import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyspark

from sparkdl.cluster.gpus.locks import held_devices
from sparkdl.devices import gpus, is_busy
from sparkdl.doctor.root_probe import RootProbe
from sparkdl.host.os_processes import parent, user_name
from sparkdl.runs.machine import describe

SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of the driver, or of an executor.

    Attributes:
        host: the name of the host.
        process: the id of the executor's Java process; of the driver its own.
        folder: the working directory.
        user: the user whose processes run there.
        time_s: the time by the clock of the host, when the facts were collected.
        packages: of the driver the version of each package, of an executor the versions that
            differ from the driver's, see `runs.machine.describe`. `python` is one of them.
        pyspark: the version of PySpark, which executors get from Spark rather than as a package.
        open_files: the largest number of open files of a process, as the soft and the hard limit;
            None without a limit.
        address_space_mb: the limit of a process's memory addresses, None without a limit.
        free_mb: the free space of the folders for temporary files, by folder.
        shared_memory_mb: the size of the file system for shared memory, None without one.
        gpus: the GPUs that NVIDIA's library shows to a process.
        visible_gpus: the value of `CUDA_VISIBLE_DEVICES`, if it is set.
        assigned_gpus: the GPUs that Spark assigned to the task; None if it schedules none.
        held_gpus: GPUs that runs hold by a lock, each with its holder.
        busy_gpus: GPUs on which a process computes.
        local_ip: the value of `SPARK_LOCAL_IP`, if it is set.
        root: the access to the root; None if it was not tried.
    """

    host: str
    process: int
    folder: str
    user: str
    time_s: float
    packages: Mapping[str, str]
    pyspark: str
    open_files: tuple[int | None, int | None]
    address_space_mb: int | None
    free_mb: Mapping[str, int]
    shared_memory_mb: int | None
    gpus: Sequence[str]
    visible_gpus: str | None
    assigned_gpus: Sequence[str] | None
    held_gpus: Mapping[str, str]
    busy_gpus: Sequence[str]
    local_ip: str | None
    root: RootProbe | None = None

    def to_json(self) -> str:
        """Return the facts as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Facts":
        """Create facts from the text that `to_json` returned."""
        fields: dict[str, Any] = json.loads(text)
        root = fields.pop("root")
        soft, hard = fields.pop("open_files")
        return cls(**fields, open_files=(soft, hard), root=root and RootProbe(**root))


def collect_facts(
    driver: Mapping[str, str] | None = None,
    assigned_gpus: Sequence[str] | None = None,
    root: RootProbe | None = None,
) -> Facts:
    """Return the facts of this process and its host.

    Args:
        driver: the packages of the driver; None if this process is the driver.
        assigned_gpus: the GPUs that Spark assigned to the task.
        root: the access of this process to the root.
    """
    described = describe(driver or {})
    devices = gpus()
    return Facts(
        host=described["host"],
        process=_java_process() or os.getpid(),
        folder=os.getcwd(),
        user=user_name(),
        time_s=time.time(),
        packages=described["packages"],
        pyspark=pyspark.__version__,
        open_files=(_limit(resource.RLIMIT_NOFILE, 0), _limit(resource.RLIMIT_NOFILE, 1)),
        address_space_mb=_mb(_limit(resource.RLIMIT_AS, 0)),
        free_mb=_free_space(),
        shared_memory_mb=_size(SHARED_MEMORY),
        gpus=devices,
        visible_gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        assigned_gpus=assigned_gpus,
        held_gpus=held_devices(devices),
        busy_gpus=[device for device in devices if _is_busy(device)],
        local_ip=os.environ.get("SPARK_LOCAL_IP"),
        root=root,
    )


def _java_process() -> int | None:
    """Return the Java process that this Python worker serves; None on the driver."""
    process = parent(os.getpid())
    while process:
        with suppress(OSError):
            if Path(f"/proc/{process}/comm").read_text().strip() == "java":
                return process
        process = parent(process)
    return None


def _limit(name: int, which: int) -> int | None:
    value = resource.getrlimit(name)[which]
    return None if value == resource.RLIM_INFINITY else value


def _mb(num_bytes: int | None) -> int | None:
    return None if num_bytes is None else num_bytes >> 20


def _free_space() -> dict[str, int]:
    """Return the free space of the folders in which processes of this host write."""
    free = {}
    for folder in {_temporary_folder(), os.getcwd()}:
        with suppress(OSError):
            free[folder] = shutil.disk_usage(folder).free >> 20
    return free


def _temporary_folder() -> str:
    """Return the folder for temporary files; Python would choose another one if it is full."""
    folders = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return next((path for path in folders if path and Path(path).is_dir()), None) or (
        tempfile.gettempdir()
    )


def _size(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).total >> 20
    except OSError:
        return None


def _is_busy(device: str) -> bool:
    try:
        return is_busy(device)
    except ValueError:  # CUDA_VISIBLE_DEVICES names a GPU that this host does not have.
        return False
