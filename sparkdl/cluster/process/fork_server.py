"""Runs in a process of its own on each executor host, started by the first task there.

The fork server imports a framework once and forks a fresh training process for each trial. It owns
the processes that it forked: it reaps each process and reports its exit code and resource usage, it
kills a process group whose task is gone, and it ends when the last executor that used it is gone.

Tasks talk to the server over a Unix socket in a folder that only this user can enter. One packet
requests a process and carries descriptors: the channel between task and training process, the log
file, and further ones that the packet names. Two packets answer: the process id at once, and the
exit of the process later. A process that was requested as `kept` goes on when its task is gone.

Only the standard library is imported here: this module is loaded before any framework.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import struct
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl.os_processes import adopt_orphans, die_with, kill, process_start, stop_descendants

__all__ = ["PACKET_BYTES", "locked", "main", "peer"]

PACKET_BYTES = 1 << 17
MAX_DESCRIPTORS = 8

# The module that a forked process runs, unless the request names another one.
_CHILD = "sparkdl.cluster.process.child"


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process id and user id at the other end of a Unix socket."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid


@contextlib.contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a folder. Yield False if the folder is gone, or locked without `wait`."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        held = os.fstat(descriptor).st_nlink > 0
    except BlockingIOError:
        held = False
    try:
        yield held
    finally:
        os.close(descriptor)


@dataclass
class _Child:
    connection: socket.socket
    scratch: str | None
    out_of_memory_kills: int
    is_kept: bool


class _Server:
    """The loop over connections, requests, exits of children and of executors."""

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        self._folder = folder
        self._listener = listener
        self._children: dict[int, _Child] = {}
        self._leases: set[tuple[int, int]] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._wakeup, end = socket.socketpair()
        self._wakeup.setblocking(False)
        end.setblocking(False)
        self._wakeup_end = end
        signal.set_wakeup_fd(end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until no executor is left that could request a process."""
        while not self._finished():
            for key, _ in self._selector.select(timeout=1.0):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wakeup:
                    with contextlib.suppress(BlockingIOError):
                        self._wakeup.recv(4096)
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]
            self._reap()

    def _finished(self) -> bool:
        self._leases = {lease for lease in self._leases if process_start(lease[0]) == lease[1]}
        connections = len(self._selector.get_map()) - 2
        if self._children or self._leases or connections:
            return False
        with locked(self._folder.parent, wait=False) as mine:
            # A task that is about to connect holds the lock, or is in the queue already.
            if not mine or _readable(self._listener):
                return False
            self._listener.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._folder.parent.rmdir()
            return True

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as exc:  # Such as too many open files: the connection is accepted later.
            print(f"accepting: {exc!r}", file=sys.stderr)
            return
        if peer(connection)[1] != os.getuid():
            connection.close()
            return
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            packet, descriptors, _, _ = socket.recv_fds(connection, PACKET_BYTES, MAX_DESCRIPTORS)
        except ConnectionError:
            packet, descriptors = b"", []
        if packet:
            try:
                self._serve_request(connection, json.loads(packet), descriptors)
            except Exception as exc:  # noqa: BLE001 A bad request must not end the server.
                _answer(connection, {"error": repr(exc)})
            for descriptor in descriptors:
                os.close(descriptor)
            return
        self._selector.unregister(connection)
        for pid, child in self._children.items():
            if child.connection is connection and not child.is_kept:
                kill(pid)  # The task was killed or cancelled, or its executor was lost.
                if child.scratch:
                    shutil.rmtree(child.scratch, ignore_errors=True)
        connection.close()

    def _serve_request(
        self, connection: socket.socket, request: Any, descriptors: list[int]
    ) -> None:
        if request["lease"]:
            self._leases.add(tuple(request["lease"]))
        _preload(request["preload"], request["path"])
        if request["fork"]:
            expected = 2 + len(request["more"])
            if len(descriptors) != expected:
                raise OSError(f"{len(descriptors)} descriptors arrived; expected {expected}")
            self._fork(connection, request, descriptors)

    def _fork(self, connection: socket.socket, request: Any, descriptors: list[int]) -> None:
        parent = os.getpid()
        kills = _out_of_memory_kills()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Threads of native libraries.
            pid = os.fork()
        if pid == 0:
            channel, log, *others = descriptors
            more = dict(zip(request["more"], others, strict=True))
            self._become_child(parent, request.get("entry", _CHILD), channel, log, more)
        kept = request.get("kept", False)
        self._children[pid] = _Child(connection, request["scratch"], kills, kept)
        _answer(connection, {"pid": pid})

    def _become_child(
        self, parent: int, entry: str, channel: int, log: int, more: dict[str, int]
    ) -> None:
        code = 70
        try:
            os.setsid()
            die_with(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for key in list(self._selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            self._wakeup_end.close()
            self._selector.close()
            os.dup2(log, 1)
            os.dup2(log, 2)
            adopt_orphans()
            code = importlib.import_module(entry).main(socket.socket(fileno=channel), more)
        except BaseException:  # noqa: BLE001 No exception may return into the server.
            traceback.print_exc()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, used = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    return
                child = self._children.pop(pid, None)  # None: an orphan of a training process.
                if child:
                    # The child adopted its orphans; no other process ends those that are left.
                    stop_descendants(spare=self._children)
                    if child.is_kept and child.scratch:
                        shutil.rmtree(child.scratch, ignore_errors=True)
                    _answer(child.connection, _exit_of(status, used, child))


def _exit_of(status: int, used: resource.struct_rusage, child: _Child) -> dict[str, Any]:
    return {
        "code": os.waitstatus_to_exitcode(status),
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_memory_mb": used.ru_maxrss / 1024,
        "out_of_memory": _out_of_memory_kills() > child.out_of_memory_kills,
    }


def _out_of_memory_kills() -> int:
    """Return the number of processes that the kernel killed for memory, see /proc/vmstat."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _readable(sock: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(timeout=0))


def _answer(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # The task is gone, which the connection shows.
        connection.send(json.dumps(message).encode())


def _preload(modules: list[str], path: list[str]) -> None:
    sys.path[:] = path
    new = [name for name in modules if name not in sys.modules]
    for name in new:
        try:
            importlib.import_module(name)
        except BaseException as exc:  # noqa: BLE001 The import in the program shows it again.
            print(f"preloading {name}: {exc!r}", file=sys.stderr)
    if new:
        gc.collect()
        gc.freeze()  # Memory that children share stays shared.


def main(folder: str) -> None:
    """Listen in `folder`; return in the process that was started, and serve in a daemon."""
    descriptor = os.open(folder, os.O_RDONLY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Through /proc, as a path in a socket address may have 107 bytes only, see unix(7).
    listener.bind(f"/proc/self/fd/{descriptor}/socket")
    listener.listen(1024)
    os.close(descriptor)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    log = os.open(Path(folder) / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    adopt_orphans()
    _Server(Path(folder), listener).serve()
