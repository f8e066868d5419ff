"""Runs in a Spark task and in the fork server. The folder of a user's fork servers on a host.

```
<temporary folder>/sparkdl-<user id>/<key>/socket  where a fork server listens
                                          /log.txt  its output
```

A folder belongs to a process that listens in it. A process that is killed leaves its folder behind;
the next fork server that starts or ends removes it.

Only the standard library is imported here: this module is loaded before any framework.
"""

import contextlib
import fcntl
import os
import re
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

# The lock is held for a moment only, or while a fork server starts; a holder that is stopped must
# not stop all other tasks of the host with it.
LOCK_TIMEOUT_S = 60.0
LOCK_POLL_S = 0.01

# The names of the folders of fork servers. Folders of other names belong to other processes.
KEY = re.compile(r"[0-9a-f]{16}")
LINK = re.compile(r"sparkdl-[0-9a-f]{12}")


def private_folder() -> Path:
    """Return the folder of this user's fork servers on this host; no other user can enter it.

    Raises:
        PermissionError: if another user has made a folder of that name.
    """
    folder = Path(tempfile.gettempdir()) / f"sparkdl-{os.getuid()}"
    status = None
    while status is None:
        # The last fork server of the user may remove the folder at any moment.
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{folder} belongs to user {status.st_uid} with mode {status.st_mode & 0o777:o}; "
            f"expected user {os.getuid()} and 700. Remove it, or set TMPDIR on the executors."
        )
    return folder


@contextlib.contextmanager
def locked(folder: Path, wait: bool = True, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[bool]:
    """Hold the lock of a folder. Yield False if the folder is gone, or locked without `wait`.

    Raises:
        TimeoutError: if another process holds the lock for longer than `timeout_s`.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        is_locked = _lock(descriptor, folder, timeout_s if wait else 0.0)
        yield is_locked and os.fstat(descriptor).st_nlink > 0
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if not timeout_s:
                return False
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"timed out after {timeout_s:g} s waiting for another process to release the lock "
                f"of {folder}. A Python worker of Spark on this host may have been stopped while "
                "it started a fork server; end that worker (/proc/locks shows its process id)."
            )
        time.sleep(LOCK_POLL_S)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process id and user id at the other end of a Unix socket."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid


def dial(folder: Path, kind: int = socket.SOCK_SEQPACKET) -> socket.socket:
    """Connect to the socket in a folder of this user.

    Raises:
        FileNotFoundError, ConnectionRefusedError: if no process listens there.
        PermissionError: if a process of another user listens there.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    connection = socket.socket(socket.AF_UNIX, kind)
    try:
        # Through /proc, as a path in a socket address may have 107 bytes only, see unix(7).
        connection.connect(f"/proc/self/fd/{descriptor}/socket")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(descriptor)
    if peer(connection)[1] != os.getuid():
        connection.close()
        raise PermissionError(f"{folder}/socket is served by another user")
    return connection


def sweep(base: Path) -> None:
    """Remove the folders that killed fork servers have left; the caller holds the lock of `base`.

    The links to the temporary folders of training processes, in the folder above `base`, go too if
    what they lead to is gone with its application.

    Args:
        base: the folder of this user's fork servers.
    """
    for link in base.parent.glob("sparkdl-*"):
        if LINK.fullmatch(link.name) and link.is_symlink() and not link.exists():
            with contextlib.suppress(OSError):  # Another user's, or removed meanwhile.
                link.unlink()
    for folder in base.iterdir():
        if not KEY.fullmatch(folder.name):
            continue
        try:
            dial(folder).close()
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # A process listens there, whatever else it answers.
