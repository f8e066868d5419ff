"""Runs in a Spark task. Lock the GPUs of a host, where Spark does not schedule GPUs.

There is one lock file for each GPU. The task and its training process hold the same lock, and the
kernel releases it when both are gone, however they end: a killed process uses its GPU for a moment
longer than its task lives. Free GPU memory is no sign of a free GPU: a process that has just
started has not taken any yet.
"""

import contextlib
import fcntl
import functools
import itertools
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkdl.host.os_processes import process_start

# Fixed, since the locks are shared by all users of the host, whatever TMPDIR their jobs have.
FOLDER = Path("/tmp/sparkdl-gpus")
POLL_S = 0.1
# Seconds for a process that was killed to release its GPUs.
RELEASE_S = 60.0
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


_logger = logging.getLogger("sparkdl.cluster")


class DevicesTakenError(RuntimeError):
    """The GPUs of this host are held by other runs, or are not visible to this executor."""


@dataclass
class LockedDevices:
    """Devices, and the descriptors that hold their locks."""

    names: list[str] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)


@contextlib.contextmanager
def locked_devices(
    candidates: Sequence[str],
    count: int,
    holder: str,
    timeout_s: float | None = None,
    has_ended: Callable[[], bool] = lambda: False,
) -> Iterator[LockedDevices]:
    """Hold the locks of some devices; yield the devices.

    Devices that this process shares are released first, or it would wait for itself.

    Args:
        candidates: the devices to choose from, best first.
        count: the number of devices to take; all are taken at once, or none.
        holder: the name of the holder, for the error messages of other runs.
        timeout_s: seconds to wait for other runs; None waits until they have ended.
        has_ended: called while waiting; returns True if waiting has become pointless.

    Raises:
        DevicesTakenError: if there are too few devices, or other runs hold them.
        PermissionError: if a lock file is not a plain file.
    """
    if count > len(candidates):
        raise DevicesTakenError(
            f"{count} GPUs were asked for, and this host shows {len(candidates)}: "
            f"{', '.join(candidates) or 'none'}. Lower num_gpus."
        )
    release_shared_devices()
    until = None if timeout_s is None else time.monotonic() + timeout_s
    with _folder() as folder, contextlib.ExitStack() as locks:
        while len((devices := _take(folder, candidates, count, holder, locks)).names) < count:
            locks.close()
            if has_ended() or (until is not None and time.monotonic() > until):
                raise DevicesTakenError(
                    f"{count} GPUs were asked for, and of {', '.join(candidates)} only "
                    f"{len(devices.names)} are free; held by {_holders(folder, candidates)}. Wait "
                    "for those runs, or lower num_gpus."
                )
            time.sleep(POLL_S)
        yield devices


@contextlib.contextmanager
def released_devices(
    devices: Sequence[str], holder: str, timeout_s: float = RELEASE_S
) -> Iterator[LockedDevices]:
    """Hold devices that Spark has assigned, once processes of earlier tasks have released them.

    Spark assigns a GPU again as soon as a task has ended, and may assign parts of a GPU to several
    tasks at once. Devices that this process shares are released first.

    Args:
        devices: the devices.
        holder: the name of the holder, as for `locked_devices`; it ends in `process <pid>`.
        timeout_s: seconds to wait for a process without a task.
    """
    release_shared_devices()
    deadline = time.monotonic() + timeout_s
    locked = LockedDevices(names=list(devices))
    with _folder() as folder, contextlib.ExitStack() as locks:
        for device in devices:
            while True:
                try:
                    locked.descriptors.append(_take_one(folder, device, holder, locks))
                    break
                except BlockingIOError:
                    if _has_living_task(_holders(folder, [device])):
                        break
                if time.monotonic() > deadline:
                    _logger.warning(
                        "GPU %s is still held by %s, whose task has ended. Going on with it.",
                        device,
                        _holders(folder, [device]),
                    )
                    break
                time.sleep(POLL_S)
        yield locked


def hold_shared_device(candidates: Sequence[str], holder: str) -> str:
    """Take a device until `release_shared_devices` or the end of this process; return its name.

    Processes that call this function share the devices of the host, about equally many on each.
    `locked_devices` leaves these devices out until the last of the processes has released them, and
    a device that it holds is left out here: if all are held, the call waits. Further calls with the
    same candidates return the same device.

    Args:
        candidates: the devices to choose from.
        holder: the name of the holder, for the messages of other runs.
    """
    shared, key = _shared_devices(os.getpid()), tuple(candidates)
    if key not in shared:
        shared[key] = _wait_for_share(candidates, holder)
    return shared[key].names[0]


def release_shared_devices() -> None:
    """Release the devices that this process has taken by `hold_shared_device`."""
    shared = _shared_devices(os.getpid())
    while shared:
        _, devices = shared.popitem()
        for descriptor in devices.descriptors:
            os.close(descriptor)


# Process-wide state: the devices that this process shares, by the devices that it could choose
# from. The tasks of a Spark worker have no object in common. The process id is an argument so that
# a forked process does not release the devices of its parent.
@functools.lru_cache(maxsize=1)
def _shared_devices(pid: int) -> dict[tuple[str, ...], LockedDevices]:
    return {}


def _wait_for_share(candidates: Sequence[str], holder: str) -> LockedDevices:
    is_told = False
    with _folder() as folder:
        while True:
            with contextlib.ExitStack() as locks:
                free = [device for device in candidates if _share(folder, device, locks)]
                if free:
                    device, seat = _take_seat(folder, free, locks)
                    return LockedDevices([device], [seat, _keep_shared(folder, device, holder)])
                if not is_told:
                    _logger.warning(
                        "waiting for a GPU: %s are held by %s",
                        ", ".join(candidates),
                        _holders(folder, candidates),
                    )
                    is_told = True
            time.sleep(POLL_S)


def _share(folder: int, device: str, locks: contextlib.ExitStack) -> bool:
    with contextlib.suppress(BlockingIOError):
        locks.enter_context(_locked(folder, _name(device), fcntl.LOCK_SH))
        return True
    return False


def _take_seat(folder: int, devices: Sequence[str], locks: contextlib.ExitStack) -> tuple[str, int]:
    """Hold a seat of a device; return the device, and the descriptor that holds the seat.

    The seats of a device are numbered. Of all free seats the one with the lowest number is taken,
    so that no device gets a process more than another needs.
    """
    for number in itertools.count():
        for device in devices:
            with contextlib.suppress(BlockingIOError):
                seat = locks.enter_context(_locked(folder, _name(f"{device}.seat{number}")))
                # A copy of the descriptor holds the lock when this one is closed.
                return device, os.dup(seat)
    raise AssertionError("unreachable")


def _keep_shared(folder: int, device: str, holder: str) -> int:
    """Hold a device that this process shares already; return the descriptor that holds it."""
    descriptor = _open(folder, _name(device))
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, holder.encode(), 0)
    return descriptor


def held_devices(devices: Sequence[str]) -> dict[str, str]:
    """Return the devices whose locks are held, each with its holder.

    A lock that is free is held by this call for a moment. Runs that want it then try again.

    Args:
        devices: the devices of this host.
    """
    holders: dict[str, str] = {}
    if not FOLDER.exists():
        return holders
    with _folder() as folder:
        for device in devices:
            try:
                with _locked(folder, _name(device)):
                    pass
            except BlockingIOError:
                holders[device] = _holders(folder, [device])
    return holders


def _has_living_task(holder: str) -> bool:
    match = re.search(r"process (\d+)$", holder)
    # A worker of Spark runs one task after the other: its own earlier task has ended.
    return (
        match is not None
        and match[1] != str(os.getpid())
        and process_start(int(match[1])) is not None
    )


@contextlib.contextmanager
def _folder() -> Iterator[int]:
    """Open the folder of the locks; the first process makes it for all users."""
    with contextlib.suppress(FileExistsError):
        FOLDER.mkdir()
        FOLDER.chmod(0o1777)
    descriptor = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take(
    folder: int, candidates: Sequence[str], count: int, holder: str, locks: contextlib.ExitStack
) -> LockedDevices:
    devices = LockedDevices()
    with contextlib.ExitStack() as all_locks:
        try:  # Two runs that take some GPUs each would wait for each other.
            all_locks.enter_context(_locked(folder, _name("all")))
        except BlockingIOError:
            return devices
        for device in candidates:
            if len(devices.names) == count:
                break
            with contextlib.suppress(BlockingIOError):
                devices.descriptors.append(_take_one(folder, device, holder, locks))
                devices.names.append(device)
    return devices


def _take_one(folder: int, device: str, holder: str, locks: contextlib.ExitStack) -> int:
    descriptor = locks.enter_context(_locked(folder, _name(device)))
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, holder.encode(), 0)
    return descriptor


@contextlib.contextmanager
def _locked(folder: int, name: str, kind: int = fcntl.LOCK_EX) -> Iterator[int]:
    descriptor = _open(folder, name)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def _open(folder: int, name: str) -> int:
    """Open a lock file, which any user may have made, without following links.

    An existing file is opened without O_CREAT: with it, the kernel refuses the file of another user
    in a folder that all users may write to, see fs.protected_regular in proc_sys_fs(5).
    """
    while True:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(name, _FLAGS, dir_fd=folder)
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                return descriptor
            os.close(descriptor)
            raise PermissionError(f"{FOLDER}/{name} is no plain file; remove {FOLDER}")
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
            os.fchmod(descriptor, 0o666)  # The umask of the first user must not count.
            return descriptor


def _name(device: str) -> str:
    """Return the name of a lock file: hosts may share `/tmp`, and number their GPUs alike.

    Containers of one machine share its GPUs, and the boot id.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return f"{boot[:8]}-{device.replace('/', '_')}.lock"


def _holders(folder: int, candidates: Sequence[str]) -> str:
    holders = set()
    for device in candidates:
        with contextlib.suppress(OSError):
            descriptor = _open(folder, _name(device))
            holders.add(os.pread(descriptor, 200, 0).decode(errors="replace"))
            os.close(descriptor)
    return ", ".join(sorted(filter(None, holders))) or "another process"
