"""Where it runs: T. One lock per GPU and host, where Spark does not schedule GPUs.

The kernel releases a lock with the task that holds it, however that ends. Free memory says nothing:
a process that has just started has not taken any.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["DevicesTakenError", "locked_devices"]

LOOK_S = 0.1


class DevicesTakenError(RuntimeError):
    """The GPUs of this host are held by other runs."""


def _folder() -> Path:
    """The locks of this host, shared by all its users."""
    folder = Path(tempfile.gettempdir()) / "sparkdl-gpus"
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)
    return folder


@contextlib.contextmanager
def locked_devices(
    candidates: Sequence[str], count: int, holder: str, timeout_s: float | None = None
) -> Iterator[list[str]]:
    """Hold the locks of `count` of these devices; yields which.

    Args:
        candidates: the devices to choose from, best first.
        count: how many; all are taken at once, or none.
        holder: who takes them, told to those who find them taken.
        timeout_s: how long to wait for others; None waits until they have ended.

    Raises:
        DevicesTakenError: there are too few, or they stay taken.
    """
    if count > len(candidates):
        raise DevicesTakenError(
            f"{count} GPUs were asked for, and this host shows {len(candidates)}: "
            f"{', '.join(candidates) or 'none'}. Lower num_gpus."
        )
    until = None if timeout_s is None else time.monotonic() + timeout_s
    with contextlib.ExitStack() as held:
        while len(taken := _take(candidates, count, holder, held)) < count:
            held.close()
            if until is not None and time.monotonic() > until:
                raise DevicesTakenError(
                    f"{count} GPUs were asked for, and of {', '.join(candidates)} only "
                    f"{len(taken)} are free; held by {_holders(candidates)}. Wait for those runs, "
                    "or lower num_gpus."
                )
            time.sleep(LOOK_S)
        yield taken


def _take(
    candidates: Sequence[str], count: int, holder: str, held: contextlib.ExitStack
) -> list[str]:
    taken: list[str] = []
    with _locked(_folder() / "all.lock", wait=True):  # Two that take some each would wait for ever.
        for device in candidates[:]:
            if len(taken) == count:
                break
            try:
                descriptor = held.enter_context(_locked(_path(device), wait=False))
            except BlockingIOError:
                continue
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
            taken.append(device)
    return taken


@contextlib.contextmanager
def _locked(path: Path, wait: bool) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, 0o666)  # Whatever the umask of the user who came first.
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)


def _path(device: str) -> Path:
    return _folder() / f"{device.replace('/', '_')}.lock"


def _holders(candidates: Sequence[str]) -> str:
    found = set()
    for device in candidates:
        with contextlib.suppress(OSError):
            found.add(_path(device).read_text())
    return ", ".join(sorted(filter(None, found))) or "somebody"
