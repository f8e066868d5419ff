"""Runs in a Spark task. A training process as its task sees it: start, wait, outcome, end."""

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

from sparkdl.cluster.outcome import End
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


# How often a watcher is asked.
WATCH_S = 0.1


@dataclass(frozen=True)
class Start:
    """How training processes are started: what has to be in place before the fork.

    Attributes:
        application: the Spark application id; its tasks on a host share a fork server.
        framework: what is imported before the fork; servers of frameworks are apart.
        preload: modules to import before the fork.
        env: variables that are set before anything is imported.
        shared: use the host's fork server; else one that serves this process only.
        is_task: a task asks, whose executor the fork server lives as long as; not a process that
            it has forked itself.
    """

    application: str
    framework: str | None = None
    preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    shared: bool = True
    is_task: bool = True


def private_folder() -> Path:
    """A folder on this host that only this user can enter; fork servers live below it.

    Raises:
        PermissionError: somebody else made a folder of that name.
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
    """Names the fork server: same application, container, interpreter and import setting."""
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
    """A connection to the fork server, which is started if there is none."""
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
    """A connection to the socket in a folder of this user's.

    Raises:
        FileNotFoundError, ConnectionRefusedError: nobody listens there.
        PermissionError: another user does.
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
    """What a fork server is asked."""
    daemon = os.getppid()  # Lives as long as the executor, and so does the fork server.
    lease = [daemon, process_start(daemon)] if start.shared and start.is_task else None
    asked = {"lease": lease, "preload": start.preload, "path": sys.path, **more}
    data = json.dumps(asked).encode()
    if len(data) > PACKET_BYTES:
        raise ValueError(
            f"sys.path of the executors has {len(sys.path)} entries, {len(data)} bytes; expected "
            f"at most {PACKET_BYTES} bytes. Put the packages into fewer folders or archives."
        )
    return data


def warm(start: Start) -> None:
    """Let this host's fork server begin to import, without waiting for it."""
    if start.shared:
        with connect(start) as server:
            server.send(packet(start, fork=False))


class TrainingProcess:
    """A fresh process that runs one function. A context manager: at its end nothing is left.

    Args:
        start: how it is started.
        payload: what it does, a picklable value for `child.main`.
        log: the local file that its output is appended to.
        scratch: a folder that is removed if this task dies before the process.
        timeout_s: how long it may take to fork it, imports included; None for any time.
        more: sockets of its own, by the name that they have in its `Context`; ours are closed.

    Raises:
        OSError: the fork server could not be started or is gone.
        TimeoutError: it took too long.
    """

    def __init__(
        self,
        start: Start,
        payload: Mapping[str, Any],
        log: Path,
        scratch: Path | None = None,
        timeout_s: float | None = None,
        more: Mapping[str, socket.socket] = MappingProxyType({}),
    ) -> None:
        self._begun = time.monotonic()
        self._said = b""
        self.started: float | None = None  # When its function was called, monotonic clock.
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._channel, theirs = socket.socketpair()
        self._server = connect(start)
        asked = {"fork": True, "scratch": str(scratch) if scratch else None, "more": [*more]}
        descriptors = [theirs.fileno(), output, *(one.fileno() for one in more.values())]
        socket.send_fds(self._server, [packet(start, **asked)], descriptors)
        for one in (theirs, *more.values()):
            one.close()
        os.close(output)
        self._server.settimeout(timeout_s)
        try:
            self.pid: int = self._answer()["pid"]
        except TimeoutError as exc:
            raise TimeoutError(
                f"the fork server of this host has not imported what the program needs within "
                f"{timeout_s:g} s"
            ) from exc
        self._server.settimeout(None)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            told = pickle.dumps(dict(payload))
            self._channel.sendall(len(told).to_bytes(8, "big") + told)

    def _answer(self) -> dict[str, Any]:
        said = self._server.recv(PACKET_BYTES)
        if not said:
            raise ConnectionError("the fork server of this host ended; see its executor's log")
        answer: dict[str, Any] = json.loads(said)
        if "error" in answer:
            raise OSError(f"the fork server of this host could not serve: {answer['error']}")
        return answer

    @property
    def outcome(self) -> dict[str, Any] | None:
        """What the process has said of its function, None as long as it has not."""
        # What comes behind the first outcome is from a copy of the process that the person forked.
        begin = self._said.find(b"o") + 1
        end = begin + 8 + int.from_bytes(self._said[begin : begin + 8], "big")
        complete = begin and begin + 8 < end <= len(self._said)
        return pickle.loads(self._said[begin + 8 : end]) if complete else None

    def wait(
        self, timeout_s: float | None = None, watch: "Callable[[], str | None] | None" = None
    ) -> End:
        """Return when the process has ended.

        Args:
            timeout_s: end it so long after its function started.
            watch: asked several times a second whether to end it, and why.
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
                look_s = WATCH_S if watch else None
                waits = [s for s in (None if timed_out else left, look_s) if s is not None]
                ready = {key.fileobj for key, _ in selector.select(min(waits, default=None))}
                if self._channel in ready:
                    self._hear(selector)
                elif self._server in ready:
                    return self._end(self._answer(), timed_out, stopped)

    def _left(self, timeout_s: float | None) -> float | None:
        if timeout_s is None or self.started is None:
            return None
        return self.started + timeout_s - time.monotonic()

    def _hear(self, selector: selectors.BaseSelector) -> None:
        chunk = b""
        with contextlib.suppress(ConnectionResetError):
            chunk = self._channel.recv(1 << 20)
        if not chunk:
            selector.unregister(self._channel)
        self._said += chunk
        self.started = self.started or time.monotonic()

    def _end(self, answer: dict[str, Any], timed_out: bool, stopped: str | None) -> End:
        now = time.monotonic()
        started = self.started or now
        return End(
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
        self._server.close()  # The fork server kills what still runs, and its descendants.
        self._channel.close()
