"""Runs in a Spark task. Start a training process, wait for its end, receive its outcome."""

import contextlib
import hashlib
import json
import os
import pickle
import selectors
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sparkdl.cluster.outcome import Outcome, ProcessExit
from sparkdl.cluster.process.fork_server import PACKET_BYTES, locked, peer
from sparkdl.os_processes import kill, process_start

__all__ = [
    "Start",
    "TrainingProcess",
    "connect",
    "dial",
    "packet",
    "private_folder",
    "warm",
]


# Seconds between two calls of a watcher.
WATCH_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Start:
    """The conditions for a fork: everything that must be in place before it.

    Attributes:
        application: the Spark application id; its tasks on a host share a fork server.
        framework: the framework of the program; each framework has a fork server of its own.
        preload: modules to import before the fork.
        env: environment variables to set before anything is imported.
        shared: use the fork server of the host; False starts a server for one process.
        is_task: the caller is a Spark task, and the fork server lives as long as the executor of
            that task; False for a process that the fork server has forked itself.
    """

    application: str
    framework: str | None = None
    preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    shared: bool = True
    is_task: bool = True


def private_folder() -> Path:
    """Return the folder of this user's fork servers on this host; no other user can enter it.

    Raises:
        PermissionError: if another user has made a folder of that name.
    """
    folder = Path(tempfile.gettempdir()) / f"sparkdl-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{folder} belongs to user {status.st_uid} with mode {status.st_mode & 0o777:o}; "
            f"expected user {os.getuid()} and 700. Remove it, or set TMPDIR on the executors."
        )
    return folder


def _server_key(start: Start) -> str:
    """Return the name of a fork server: by application, container, interpreter and imports."""
    parts = [
        start.application,
        Path("/proc/self/cgroup").read_text(),
        os.readlink("/proc/self/ns/pid"),
        sys.executable,
        start.framework,
        sorted(start.env.items()),
        "" if start.shared else uuid.uuid4().hex,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def connect(start: Start) -> socket.socket:
    """Connect to the fork server; start it if there is none."""
    key = _server_key(start)
    while True:
        base = private_folder()
        with locked(base) as held:
            if not held:
                continue  # The last server just removed the folder with itself.
            try:
                return dial(base / key)
            except (FileNotFoundError, ConnectionRefusedError):
                _start_server(base / key, start.env)
                return dial(base / key)


def dial(folder: Path, kind: int = socket.SOCK_SEQPACKET) -> socket.socket:
    """Connect to the socket in a folder of this user.

    Raises:
        FileNotFoundError, ConnectionRefusedError: if no process listens there.
        PermissionError: if a process of another user listens there.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    connection = socket.socket(socket.AF_UNIX, kind)
    try:
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


def _start_server(folder: Path, env: Mapping[str, str]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "socket").unlink(missing_ok=True)  # Left by a server that was killed.
    # The same modules as in this worker, whatever way they reached it; not the working folder's.
    start = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from sparkdl.cluster.process.fork_server import main; main({str(folder)!r})"
    )
    subprocess.run(
        [sys.executable, "-c", start],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def packet(start: Start, **more: Any) -> bytes:
    """Return the packet of a request to a fork server."""
    daemon = os.getppid()  # Spark's daemon lives as long as the executor; so does the server.
    lease = [daemon, process_start(daemon)] if start.shared and start.is_task else None
    request = {"lease": lease, "preload": start.preload, "path": sys.path, **more}
    data = json.dumps(request).encode()
    if len(data) > PACKET_BYTES:
        raise ValueError(
            f"sys.path of the executors has {len(sys.path)} entries, {len(data)} bytes; expected "
            f"at most {PACKET_BYTES} bytes. Put the packages into fewer folders or archives."
        )
    return data


def warm(start: Start) -> None:
    """Let the fork server of this host begin its imports; do not wait for them."""
    if start.shared:
        with connect(start) as server:
            server.send(packet(start, fork=False))


class TrainingProcess:
    """A fresh process that runs one function; a context manager that ends it with all it started.

    Args:
        start: the conditions of the fork.
        payload: the picklable request for `child.main`.
        log: the local file to which the output of the process is appended.
        scratch: a folder to remove if this task dies before the process.
        timeout_s: seconds that the fork may take, imports included; None for no limit.
        sockets: sockets for the process, by the names of fields of its `Context`; they are closed
            in this process.

    Raises:
        OSError: if the fork server could not be started or is gone.
        TimeoutError: if the fork took longer than `timeout_s`.
    """

    def __init__(
        self,
        start: Start,
        payload: Mapping[str, Any],
        log: Path,
        scratch: Path | None = None,
        timeout_s: float | None = None,
        sockets: Mapping[str, socket.socket] = MappingProxyType({}),
    ) -> None:
        self._begun = time.monotonic()
        self._received = b""
        self.started: float | None = None  # Time of the call of its function, monotonic clock.
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._channel, theirs = socket.socketpair()
        self._server = connect(start)
        request = {"fork": True, "scratch": str(scratch) if scratch else None, "more": [*sockets]}
        descriptors = [theirs.fileno(), output, *(sock.fileno() for sock in sockets.values())]
        socket.send_fds(self._server, [packet(start, **request)], descriptors)
        for sock in (theirs, *sockets.values()):
            sock.close()
        os.close(output)
        self._server.settimeout(timeout_s)
        try:
            self.pid: int = self._answer()["pid"]
        except TimeoutError as exc:
            raise TimeoutError(
                f"timed out after {timeout_s:g} s while the fork server on this host imported the "
                "program's modules"
            ) from exc
        self._server.settimeout(None)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            data = pickle.dumps(dict(payload))
            self._channel.sendall(len(data).to_bytes(8, "big") + data)

    def _answer(self) -> dict[str, Any]:
        data = self._server.recv(PACKET_BYTES)
        if not data:
            raise ConnectionError("the fork server of this host ended; see its executor's log")
        answer: dict[str, Any] = json.loads(data)
        if "error" in answer:
            raise OSError(f"the fork server of this host could not serve: {answer['error']}")
        return answer

    @property
    def outcome(self) -> Outcome | None:
        """The outcome that the process has sent; None as long as it has sent none."""
        # A copy of the process that the user forked may send a second outcome: the first counts.
        begin = self._received.find(b"o") + 1
        end = begin + 8 + int.from_bytes(self._received[begin : begin + 8], "big")
        complete = begin and begin + 8 < end <= len(self._received)
        return Outcome.from_json(self._received[begin + 8 : end]) if complete else None

    def wait(
        self, timeout_s: float | None = None, watch: "Callable[[], str | None] | None" = None
    ) -> ProcessExit:
        """Wait until the process has ended.

        Args:
            timeout_s: seconds in its function after which the process is killed.
            watch: called several times a second; returns the reason to kill the process, or None.
        """
        timed_out, stopped = False, None
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._channel, selectors.EVENT_READ)
            while True:
                left = self._left(timeout_s)
                if left is not None and left <= 0 and not timed_out:
                    timed_out = True
                    kill(self.pid)
                if watch and not stopped and (stopped := watch()):
                    kill(self.pid)
                watch_s = WATCH_S if watch else None
                waits = [s for s in (None if timed_out else left, watch_s) if s is not None]
                ready = {key.fileobj for key, _ in selector.select(min(waits, default=None))}
                if self._channel in ready:
                    self._receive(selector)
                elif self._server in ready:
                    return self._exit(self._answer(), timed_out, stopped)

    def _left(self, timeout_s: float | None) -> float | None:
        if timeout_s is None or self.started is None:
            return None
        return self.started + timeout_s - time.monotonic()

    def _receive(self, selector: selectors.BaseSelector) -> None:
        chunk = b""
        with contextlib.suppress(ConnectionResetError):
            chunk = self._channel.recv(1 << 20)
        if not chunk:
            selector.unregister(self._channel)
        self._received += chunk
        self.started = self.started or time.monotonic()

    def _exit(self, answer: dict[str, Any], timed_out: bool, stopped: str | None) -> ProcessExit:
        now = time.monotonic()
        started = self.started or now
        return ProcessExit(
            code=answer["code"],
            outcome=self.outcome,
            starting_s=started - self._begun,
            running_s=now - started,
            cpu_s=answer["cpu_s"],
            peak_memory_mb=answer["peak_memory_mb"],
            out_of_memory=answer["out_of_memory"],
            timed_out=timed_out,
            stopped=stopped,
        )

    def __enter__(self) -> "TrainingProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()  # The fork server kills the process and its descendants.
        self._channel.close()
