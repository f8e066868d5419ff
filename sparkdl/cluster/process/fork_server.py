"""Runs in a process of its own on each executor host, started by the first task there.

The fork server imports a framework once. For each training process it forks a monitor, which forks
the training process and stays with it, see `monitor`. The server ends when the last executor that
used it is gone, or when no process was requested for a while.

Tasks talk to the server over a Unix socket in a folder that only this user can enter. One packet
requests a process and carries descriptors: the channel between task and training process, the log
file, and further ones that the packet names or only counts. Two packets answer, from the monitor:
the process id at once, and the exit of the process later.

Only the standard library is imported here: this module is loaded before any framework.
"""

import contextlib
import faulthandler
import gc
import importlib
import json
import math
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkdl.cluster.process.monitor import Wakeup, answer, fork, monitor, remove_folders
from sparkdl.cluster.process.server_folder import locked, peer, sweep
from sparkdl.host.os_processes import (
    adopt_orphans,
    in_yarn_container,
    process_start,
    stop_descendants,
)

PACKET_BYTES = 1 << 17
MAX_DESCRIPTORS = 64

# A server that forked nothing for this long ends. A notebook may ask for many servers, one for each
# `env=`, and each has a framework in memory.
IDLE_S = 600.0
# One that holds the result of a function belongs to one run, and gives its memory back.
PRELOADED_IDLE_S = 30.0
# The part of the function's output that the log of a trial gets.
MAX_OUTPUT_BYTES = 1 << 16
# The name of the file with the function of `preload=` in the folder of its server.
FUNCTION = "function"
# Programs that tidy up temporary folders take a folder that did not change for days as abandoned.
TOUCH_S = 3600.0
# An import that hangs, as on a dead mount, ends the server after the time that its task allows, or
# after this time; running training processes go on.
PRELOAD_S = 600
MARGIN_S = 5
MAX_ALARM_S = 1 << 30
# Modules that the server imports after the framework.
_CALL = "sparkdl.cluster.process.preload_call"
_STATE = "sparkdl.training.preloaded"
# After an error, such as too many open files, connections wait for so long.
PAUSE_S = 1.0


class _Server:
    """The loop over connections, requests, exits of monitors and of executors.

    Args:
        folder: the folder of the server.
        identity: device and inode of the folder; another server may get a folder of that name.
        listener: the socket in the folder.
        function: the pickled function of `preload=`, if the server has one.
    """

    def __init__(
        self,
        folder: Path,
        identity: tuple[int, int] | None,
        listener: socket.socket,
        function: bytes | None = None,
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._listener = listener
        self._function = function
        self._application: str | None = None
        self._idle_s = PRELOADED_IDLE_S if function else IDLE_S
        self._requests: dict[int, Any] = {}  # By the process id of the monitor.
        self._leases: set[tuple[int, int]] = set()
        self._connections: set[socket.socket] = set()
        self._busy_s = self._touched_s = time.monotonic()
        self._paused_s = 0.0
        self._wakeup = Wakeup()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wakeup.end, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until no executor is left that could request a process."""
        while not self._finished():
            for key, _ in self._selector.select(timeout=1.0):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wakeup.end:
                    self._wakeup.drain()
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]
            self._reap()
            self._tend()

    def _finished(self) -> bool:
        now = time.monotonic()
        if self._requests or self._connections:
            self._busy_s = now
            return False
        if self._function:
            self._forget_error()
        self._leases = {lease for lease in self._leases if process_start(lease[0]) == lease[1]}
        if self._leases and now - self._busy_s < self._idle_s:
            return False
        with locked(self._folder.parent, wait=False) as mine:
            # A task that is about to connect holds the lock, or is in the queue already.
            if not mine and self._folder.parent.exists():
                return False
            if _readable(self._listener):
                return False
            self._listener.close()
            if _identity(self._folder) == self._identity:
                shutil.rmtree(self._folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                sweep(self._folder.parent)
                self._folder.parent.rmdir()
            return True

    def _tend(self) -> None:
        """Listen again after a pause, and keep the folder from being taken for abandoned."""
        now = time.monotonic()
        if self._paused_s and now - self._paused_s > PAUSE_S:
            self._paused_s = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        if now - self._touched_s > TOUCH_S:
            self._touched_s = now
            for path in (self._folder.parent, self._folder, *self._folder.glob("*")):
                with contextlib.suppress(OSError):
                    os.utime(path)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as exc:  # Such as too many open files: the connection is accepted later.
            print(f"accepting: {exc!r}", file=sys.stderr)
            self._paused_s = time.monotonic()
            self._selector.unregister(self._listener)
            return
        if peer(connection)[1] != os.getuid():
            connection.close()
            return
        self._connections.add(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            packet, descriptors, _, _ = socket.recv_fds(connection, PACKET_BYTES, MAX_DESCRIPTORS)
        except ConnectionError:
            packet, descriptors = b"", []
        try:
            if not packet or self._serve_request(connection, json.loads(packet), descriptors):
                self._drop(connection)
        except Exception as exc:  # noqa: BLE001 A bad request must not end the server.
            answer(connection, {"error": repr(exc)})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._connections.discard(connection)
        connection.close()

    def _serve_request(
        self, connection: socket.socket, request: Any, descriptors: list[int]
    ) -> bool:
        """Do what a task requests; return True if a monitor has taken over the connection."""
        if "leave" in request:
            # Another run of the application loads something of its own.
            is_unused = not self._requests and len(self._connections) == 1
            if is_unused and request["leave"] == self._application:
                self._idle_s = 0.0
            return False
        self._application = request.get("application")
        if request["lease"]:
            self._leases.add(tuple(request["lease"]))
        _preload(request["preload"], request["path"], request.get("timeout_s"))
        if not request["fork"]:
            return False
        expected = 2 + len(request["more"]) + request.get("held", 0)
        if len(descriptors) != expected:
            raise OSError(f"{len(descriptors)} descriptors arrived; expected {expected}")
        if self._function:
            self._call(connection, self._function, request.get("timeout_s"))
        pid = fork(lambda: self._become_monitor(connection, request, descriptors))
        self._requests[pid] = request
        if self._function and _preloaded().error is None:
            _preloaded().output = ""  # All trials that fail have it in their logs.
        return True

    def _call(self, connection: socket.socket, function: bytes, timeout_s: float | None) -> None:
        """Call the function of `preload=`, unless it was called before."""
        if _preloaded().is_called:
            return
        answer(connection, {"calling": True})
        log = self._folder / "log.txt"
        begin = log.stat().st_size
        faulthandler.enable(2)
        with _alarm(timeout_s):
            importlib.import_module(_CALL).call(function, is_forked=True)
        faulthandler.disable()
        with log.open("rb") as file:
            file.seek(max(begin, log.stat().st_size - MAX_OUTPUT_BYTES))
            _preloaded().output = file.read().decode(errors="replace")
        gc.collect()
        gc.freeze()

    def _forget_error(self) -> None:
        """Let the next attempt call the function again, when all that waited were told."""
        if _preloaded().error is not None:
            importlib.import_module(_STATE).forget_error()

    def _become_monitor(
        self, connection: socket.socket, request: Any, descriptors: list[int]
    ) -> int:
        self._wakeup.close()
        for sock in (self._listener, *self._connections - {connection}):
            sock.close()
        self._selector.close()
        return monitor(connection, request, descriptors)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, _ = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    return
                request = self._requests.pop(pid, None)
                if request and os.WIFSIGNALED(status):
                    # The monitor was killed, so that this process adopted its descendants.
                    stop_descendants(spare=self._requests)
                    remove_folders(request, with_scratch=request.get("kept", False))


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _readable(sock: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(timeout=0))


def _preload(modules: list[str], path: list[str], timeout_s: float | None) -> None:
    sys.path[:] = path
    new = [name for name in modules if not _is_imported(name)]
    with _alarm(timeout_s):
        for name in new:
            try:
                _import(name)
            except BaseException as exc:  # noqa: BLE001 The import in the program shows it again.
                print(f"preloading {name}: {exc!r}", file=sys.stderr)
    if new:
        gc.collect()
        gc.freeze()  # Memory that children share stays shared.


@contextlib.contextmanager
def _alarm(timeout_s: float | None) -> Iterator[None]:
    """End this process if the block takes much longer than this number of seconds."""
    limit_s = min(timeout_s or PRELOAD_S, MAX_ALARM_S)
    signal.alarm(MARGIN_S + math.ceil(limit_s))  # The default action is to end.
    try:
        yield
    finally:
        signal.alarm(0)


def _preloaded() -> Any:
    """Return what the function of `preload=` left in this process."""
    return importlib.import_module(_STATE).latest()


def _is_imported(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    return name in sys.modules or (module in sys.modules and attribute in vars(sys.modules[module]))


def _import(name: str) -> None:
    """Import a module, or the object of a module, as `from transformers import Trainer` does."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as exc:
        module, _, attribute = name.rpartition(".")
        if exc.name != name or module not in sys.modules:
            raise
        getattr(sys.modules[module], attribute)


def main(folder: str) -> None:
    """Listen in `folder`; return in the process that was started, and serve in a daemon."""
    identity = _identity(Path(folder))
    descriptor = os.open(folder, os.O_RDONLY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Through /proc, as a path in a socket address may have 107 bytes only, see unix(7).
    listener.bind(f"/proc/self/fd/{descriptor}/socket")
    listener.listen(1024)
    os.close(descriptor)
    if os.fork():
        os._exit(0)
    if in_yarn_container():
        os.setpgid(0, 0)  # YARN counts the memory of the processes in the session of a container.
    else:
        os.setsid()
    os.chdir("/")
    log = os.open(Path(folder) / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    adopt_orphans()
    given = Path(folder, FUNCTION)
    function = given.read_bytes() if given.exists() else None
    _Server(Path(folder), identity, listener, function).serve()
