"""Runs in a process of its own on an executor host. Hold the copy of a run's rows for its trials.

The copy is unnamed files, which the kernel frees when the last process that has them open or mapped
has ended, however it ends. Between two trials this process has them open. The task that has written
the copy starts it, see `SharedRows`. Tasks connect to a socket in a folder that only this user can
enter, get the descriptors, and stay connected until their trial has ended. The process ends when no
task has been connected for a while.

Only the standard library is imported here, so that the process starts at once and stays small.
"""

import contextlib
import os
import selectors
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from sparkdl.cluster.process.server_folder import locked, peer

# Seconds without a task after which the copy is removed: on a busy host, a minute may pass between
# two trials of a run.
IDLE_S = 120.0

# What tasks ask for: the descriptors of the copy; or, from another run, the end of this process
# unless a task uses the copy.
COPY, LEAVE = b"copy", b"leave"

MAX_DESCRIPTORS = 250  # In a packet; the kernel allows 253, see unix(7).


class _Holder:
    """The loop over connections.

    Args:
        folder: the folder of the socket.
        listener: the socket.
        descriptors: the descriptors of the copy.
        idle_s: seconds without a task after which the process ends.
    """

    def __init__(
        self, folder: Path, listener: socket.socket, descriptors: Sequence[int], idle_s: float
    ) -> None:
        self._folder = folder
        self._listener = listener
        self._descriptors = descriptors
        self._idle_s = idle_s
        self._inode = (folder / "socket").stat().st_ino
        self._connections: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until no task has been connected for a while."""
        until_s = time.monotonic() + self._idle_s
        while time.monotonic() < until_s or not self._leave():
            is_unwanted = False
            for key, _ in self._selector.select(timeout=min(1.0, self._idle_s)):
                if key.fileobj is self._listener:
                    self._accept()
                elif self._read(key.fileobj) == LEAVE:  # type: ignore[arg-type]
                    is_unwanted = True
            if is_unwanted and len(self._connections) == 1:
                until_s = 0.0
            elif self._connections:
                until_s = time.monotonic() + self._idle_s

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # The task has ended.
            connection, _ = self._listener.accept()
            if peer(connection)[1] != os.getuid():
                connection.close()
                return
            connection.setblocking(False)
            self._connections.add(connection)
            self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> bytes:
        try:
            message = connection.recv(len(LEAVE))
            if message == COPY:
                self._send(connection)
        except OSError:  # The task has ended, or does not read.
            message = b""
        if not message:
            self._selector.unregister(connection)
            self._connections.discard(connection)
            connection.close()
        return message

    def _send(self, connection: socket.socket) -> None:
        number = str(len(self._descriptors)).encode()
        for begin in range(0, len(self._descriptors), MAX_DESCRIPTORS):
            some = self._descriptors[begin : begin + MAX_DESCRIPTORS]
            socket.send_fds(connection, [number], some)

    def _leave(self) -> bool:
        """Remove the folder, unless a task is about to connect; return False then."""
        with locked(self._folder, wait=False) as is_free, selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            if (not is_free and self._folder.exists()) or selector.select(timeout=0):
                return False
            self._listener.close()
            if self._has_folder():
                shutil.rmtree(self._folder, ignore_errors=True)
            return True

    def _has_folder(self) -> bool:
        """Return False if a task has started another process in this folder meanwhile."""
        try:
            return (self._folder / "socket").stat().st_ino == self._inode
        except OSError:
            return False


def main(folder: str, descriptors: Sequence[int], idle_s: float) -> None:
    """Listen in `folder`; return in the process that was started, and serve in a daemon.

    Args:
        folder: a folder that only this user can enter; the task that starts this holds its lock.
        descriptors: the descriptors of the copy, which are inherited.
        idle_s: seconds without a task after which the daemon ends.
    """
    place = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(FileNotFoundError):  # Of a holder that was killed.
        os.unlink("socket", dir_fd=place)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Through /proc, as a path in a socket address may have 107 bytes only, see unix(7).
    listener.bind(f"/proc/self/fd/{place}/socket")
    listener.listen(1024)
    os.close(place)
    if os.fork():
        return
    os.chdir("/")
    _Holder(Path(folder), listener, descriptors, idle_s).serve()
