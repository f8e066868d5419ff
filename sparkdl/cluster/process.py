"""Where it runs: T. A training process as its task sees it: start, wait, outcome, end."""

import contextlib
import hashlib
import json
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl.cluster.forkserver import PACKET_BYTES, locked, peer
from sparkdl.processes import kill, process_start

__all__ = [
    "End",
    "Start",
    "TrainingProcess",
    "describe_end",
    "private_folder",
    "warm",
]


@dataclass(frozen=True)
class Start:
    """How training processes are started: what has to be in place before the fork.

    Attributes:
        application: the Spark application id; its tasks on a host share a fork server.
        framework: what is imported before the fork; servers of frameworks are apart.
        preload: modules to import before the fork.
        env: variables that are set before anything is imported.
        shared: use the host's fork server; else one that serves this process only.
    """

    application: str
    framework: str | None = None
    preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    shared: bool = True


@dataclass(frozen=True)
class End:
    """How a training process ended.

    Attributes:
        code: its exit code, or the negative number of the signal that ended it.
        outcome: what it said of its function before it ended, None if nothing.
        starting_s, running_s: seconds until and in its function.
        cpu_s, peak_memory_mb: from the process that reaped it, see wait4(2).
        out_of_memory: the kernel killed some process for memory meanwhile.
        timed_out: we ended it as it ran too long.
    """

    code: int
    outcome: dict[str, Any] | None
    starting_s: float
    running_s: float
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0
    out_of_memory: bool = False
    timed_out: bool = False


def describe_end(end: End, timeout_s: float | None) -> str:
    """Why there is no outcome, in a sentence.

    Example:
        >>> describe_end(End(-9, None, 0.1, 2.0, peak_memory_mb=900.0, out_of_memory=True), None)
        'killed by SIGKILL: the host ran out of memory (this process used up to 900 MiB)'
        >>> describe_end(End(3, None, 0.1, 2.0), None)
        'the process ended itself with exit code 3 (os._exit) before its function returned'
    """
    if end.timed_out:
        return f"ended after trial_timeout_s={timeout_s:g} seconds"
    if end.code >= 0:
        return (
            f"the process ended itself with exit code {end.code} (os._exit) "
            "before its function returned"
        )
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-end.code, f"signal {-end.code}")
    if -end.code == signal.SIGKILL and end.out_of_memory:
        return (
            f"killed by {name}: the host ran out of memory "
            f"(this process used up to {end.peak_memory_mb:.0f} MiB)"
        )
    return f"killed by {name} (this process used up to {end.peak_memory_mb:.0f} MiB)"


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


def _connect(start: Start) -> socket.socket:
    """A connection to the fork server, which is started if there is none."""
    key = _server_key(start)
    while True:
        base = private_folder()
        with locked(base) as held:
            if not held:
                continue  # The last server just removed the folder with itself.
            try:
                return _dial(base / key)
            except (FileNotFoundError, ConnectionRefusedError):
                _start_server(base / key, start.env)
                return _dial(base / key)


def _dial(folder: Path) -> socket.socket:
    descriptor = os.open(folder, os.O_RDONLY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
        f"from sparkdl.cluster.forkserver import main; main({str(folder)!r})"
    )
    subprocess.run(
        [sys.executable, "-c", start],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _packet(start: Start, **more: Any) -> bytes:
    daemon = os.getppid()  # Lives as long as the executor, and so does the fork server.
    lease = [daemon, process_start(daemon)] if start.shared else None
    asked = {"lease": lease, "preload": start.preload, "path": sys.path, **more}
    packet = json.dumps(asked).encode()
    if len(packet) > PACKET_BYTES:
        raise ValueError(
            f"sys.path of the executors has {len(sys.path)} entries, {len(packet)} bytes; expected "
            f"at most {PACKET_BYTES} bytes. Put the packages into fewer folders or archives."
        )
    return packet


def warm(start: Start) -> None:
    """Let this host's fork server begin to import, without waiting for it."""
    if start.shared:
        with _connect(start) as server:
            server.send(_packet(start, fork=False))


class TrainingProcess:
    """A fresh process that runs one function. A context manager: at its end nothing is left.

    Args:
        start: how it is started.
        payload: what it does, a picklable value for `child.main`.
        log: the local file that its output is appended to.
        scratch: a folder that is removed if this task dies before the process.

    Raises:
        OSError: the fork server could not be started or is gone.
    """

    def __init__(
        self, start: Start, payload: Mapping[str, Any], log: Path, scratch: Path | None = None
    ) -> None:
        self._begun = time.monotonic()
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._channel, theirs = socket.socketpair()
        self._server = _connect(start)
        packet = _packet(start, fork=True, scratch=str(scratch) if scratch else None)
        socket.send_fds(self._server, [packet], [theirs.fileno(), output])
        theirs.close()
        os.close(output)
        self.pid: int = self._answer()["pid"]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            told = pickle.dumps(dict(payload))
            self._channel.sendall(len(told).to_bytes(8, "big") + told)

    def _answer(self) -> dict[str, Any]:
        packet = self._server.recv(PACKET_BYTES)
        if not packet:
            raise ConnectionError("the fork server of this host ended; see its executor's log")
        answer: dict[str, Any] = json.loads(packet)
        if "error" in answer:
            raise OSError(f"the fork server of this host could not serve: {answer['error']}")
        return answer

    def wait(self, timeout_s: float | None = None) -> End:
        """Return when the process has ended; end it `timeout_s` after its function started."""
        started: float | None = None
        said, timed_out = b"", False
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._channel, selectors.EVENT_READ)
            while True:
                left = started + timeout_s - time.monotonic() if started and timeout_s else None
                if left is not None and left <= 0 and not timed_out:
                    timed_out = True
                    kill(self.pid)
                ready = {key.fileobj for key, _ in selector.select(None if timed_out else left)}
                if self._channel in ready:
                    chunk = self._hear()
                    if not chunk:
                        selector.unregister(self._channel)
                    said += chunk
                    started = started or time.monotonic()
                elif self._server in ready:
                    return self._end(self._answer(), said, started, timed_out)

    def _hear(self) -> bytes:
        try:
            return self._channel.recv(1 << 20)
        except ConnectionResetError:
            return b""

    def _end(
        self, answer: dict[str, Any], said: bytes, started: float | None, timed_out: bool
    ) -> End:
        now = time.monotonic()
        started = started or now
        # What comes behind the first outcome is from a copy of the process that the person forked.
        end = 9 + int.from_bytes(said[1:9], "big")
        complete = 9 < end <= len(said)
        return End(
            code=answer["code"],
            outcome=pickle.loads(said[9:end]) if complete else None,
            starting_s=started - self._begun,
            running_s=now - started,
            cpu_s=answer["cpu_s"],
            peak_memory_mb=answer["peak_memory_mb"],
            out_of_memory=answer["out_of_memory"],
            timed_out=timed_out,
        )

    def __enter__(self) -> "TrainingProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()  # The fork server kills what still runs, and its descendants.
        self._channel.close()
