"""Runs in a Spark task. One lock per GPU and host, where Spark does not schedule GPUs.

The kernel releases a lock with the task that holds it, however that ends. Free memory says nothing:
a process that has just started has not taken any.
"""

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

__all__ = ["DevicesTakenError", "locked_devices"]

# Shared by all users of the host, whatever temporary folder a job was given.
FOLDER = Path("/tmp/sparkdl-gpus")
LOOK_S = 0.1
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class DevicesTakenError(RuntimeError):
    """The GPUs of this host are held by other runs."""


@contextlib.contextmanager
def locked_devices(
    candidates: Sequence[str],
    count: int,
    holder: str,
    timeout_s: float | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> Iterator[list[str]]:
    """Hold the locks of `count` of these devices; yields which.

    Args:
        candidates: the devices to choose from, best first.
        count: how many; all are taken at once, or none.
        holder: who takes them, told to those who find them taken.
        timeout_s: how long to wait for others; None waits until they have ended.
        ended: asked while waiting whether that has become pointless.

    Raises:
        DevicesTakenError: there are too few, or they stay taken.
        PermissionError: the folder of the locks is not what it should be.
    """
    if count > len(candidates):
        raise DevicesTakenError(
            f"{count} GPUs were asked for, and this host shows {len(candidates)}: "
            f"{', '.join(candidates) or 'none'}. Lower num_gpus."
        )
    until = None if timeout_s is None else time.monotonic() + timeout_s
    with _folder() as folder, contextlib.ExitStack() as held:
        while len(taken := _take(folder, candidates, count, holder, held)) < count:
            held.close()
            if ended() or (until is not None and time.monotonic() > until):
                raise DevicesTakenError(
                    f"{count} GPUs were asked for, and of {', '.join(candidates)} only "
                    f"{len(taken)} are free; held by {_holders(folder, candidates)}. Wait for "
                    "those runs, or lower num_gpus."
                )
            time.sleep(LOOK_S)
        yield taken


@contextlib.contextmanager
def _folder() -> Iterator[int]:
    """The folder of the locks, open; whoever comes first makes it for all users."""
    with contextlib.suppress(FileExistsError):
        FOLDER.mkdir()
        FOLDER.chmod(0o1777)
    descriptor = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take(
    folder: int, candidates: Sequence[str], count: int, holder: str, held: contextlib.ExitStack
) -> list[str]:
    taken: list[str] = []
    with contextlib.ExitStack() as all_of_them:  # Two that take some each would wait for ever.
        try:
            all_of_them.enter_context(_locked(folder, "all.lock"))
        except BlockingIOError:
            return taken
        for device in candidates:
            if len(taken) == count:
                break
            with contextlib.suppress(BlockingIOError):
                descriptor = held.enter_context(_locked(folder, _name(device)))
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, holder.encode(), 0)
                taken.append(device)
    return taken


@contextlib.contextmanager
def _locked(folder: int, name: str) -> Iterator[int]:
    descriptor = _open(folder, name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def _open(folder: int, name: str) -> int:
    """A lock file of any user's. No link is followed, and nobody else's file is changed.

    An existing one is opened without O_CREAT: with it, the kernel refuses another user's file in
    a folder that all may write to, see fs.protected_regular in proc_sys_fs(5).
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
            os.fchmod(descriptor, 0o666)  # Whatever the umask of the user who came first.
            return descriptor


def _name(device: str) -> str:
    return f"{device.replace('/', '_')}.lock"


def _holders(folder: int, candidates: Sequence[str]) -> str:
    found = set()
    for device in candidates:
        with contextlib.suppress(OSError):
            descriptor = _open(folder, _name(device))
            found.add(os.pread(descriptor, 200, 0).decode(errors="replace"))
            os.close(descriptor)
    return ", ".join(sorted(filter(None, found))) or "somebody"
