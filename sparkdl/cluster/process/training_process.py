"""Runs in a Spark task. Start a training process, wait for its end, receive its outcome."""

import contextlib
import json
import os
import pickle
import selectors
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sparkdl.cluster.outcome import Outcome, ProcessExit
from sparkdl.cluster.process.fork_server import PACKET_BYTES
from sparkdl.cluster.process.monitor import remove_temporary
from sparkdl.cluster.process.server_connection import Start, connect, packet
from sparkdl.cluster.process.time_limits import Kill, TimeLimits
from sparkdl.host.cuda_visibility import listed_devices
from sparkdl.host.local_disk import local_disk
from sparkdl.host.os_processes import kill, kill_marked, process_state

# Seconds between two calls of a watcher.
WATCH_S = 0.1
# A process that was killed and does not end in this time is left alone, and its slot is free.
UNKILLABLE_S = 60.0

# The variable by which all programs that a training process has started can be found.
MARKER = "SPARKDL_PROCESS"

# The frames of an import in the traceback of a process that a fault has killed.
_IMPORTING = "<frozen importlib._bootstrap"
_NO_USAGE = {"cpu_s": 0.0, "peak_memory_mb": 0.0, "out_of_memory": False, "fault": ""}


class StartTimeoutError(TimeoutError):
    """A training process could not be forked in time."""


class PreloadError(RuntimeError):
    """The process that called the function of `preload=` was killed by it."""


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
        held: descriptors that the process holds until its end, such as locks.
        use: the local file for samples of its use of CPU, memory and GPUs; None for none.

    Raises:
        OSError: if the fork server could not be started or is gone.
        StartTimeoutError: if the fork took longer than `timeout_s`.
        PreloadError: if the function of `preload=` has killed the fork server.
    """

    def __init__(
        self,
        start: Start,
        payload: Mapping[str, Any],
        log: Path,
        scratch: Path | None = None,
        timeout_s: float | None = None,
        sockets: Mapping[str, socket.socket] = MappingProxyType({}),
        held: Sequence[int] = (),
        use: Path | None = None,
    ) -> None:
        self._limits = TimeLimits(begun=time.monotonic())
        self._log = log
        self._received = b""
        self._marker = f"{MARKER}={uuid.uuid4().hex}"
        self._temporary, disk = _temporary_folder(payload["environ"])
        request: dict[str, Any] = {
            "fork": True,
            "scratch": str(scratch) if scratch else None,
            "more": [*sockets],
            "held": len(held),
            "timeout_s": timeout_s,
            "temporary": str(self._temporary),
            "disk": str(disk),
        }
        if use:
            visible = payload["environ"].get("CUDA_VISIBLE_DEVICES")
            gpus = None if visible is None else listed_devices(visible)
            request["use"] = {"file": str(use), "gpus": gpus}
        with contextlib.ExitStack() as stack:
            output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            stack.callback(os.close, output)
            self._channel, theirs = socket.socketpair()
            for sock in (theirs, *sockets.values()):
                stack.enter_context(sock)
            with contextlib.ExitStack() as undone:
                undone.enter_context(self._channel)
                self._server = undone.enter_context(connect(start))
                passed = [theirs.fileno(), output, *(s.fileno() for s in sockets.values()), *held]
                socket.send_fds(self._server, [packet(start, **request)], passed)
                undone.pop_all()
        self.pid = self._wait_for_fork(timeout_s)
        call = None if start.shared else start.call
        self._send({**payload, "preload": call and call.pickled})

    def _wait_for_fork(self, timeout_s: float | None) -> int:
        self._server.settimeout(timeout_s)
        is_calling = False
        try:
            while "pid" not in (answer := self._answer()):
                is_calling = True
            pid: int = answer["pid"]
        except TimeoutError as exc:
            self.__exit__()
            raise StartTimeoutError(
                f"timed out after {timeout_s:g} s while the fork server on this host imported the "
                f"program's modules{' and called the function of preload=' * is_calling}. Import "
                "modules that take longer inside the function, or raise SPARKDL_START_TIMEOUT_S"
            ) from exc
        except OSError as exc:
            self.__exit__()
            if not is_calling:
                raise
            raise PreloadError(
                "the function of preload= killed its process, by a fault in native code or because "
                "the host has no more memory; the log of the kernel and of the executor tell more"
            ) from exc
        self._server.settimeout(None)
        return pid

    def _send(self, payload: Mapping[str, Any]) -> None:
        name, value = self._marker.split("=")
        environ = {**payload["environ"], "TMPDIR": str(self._temporary), name: value}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            data = pickle.dumps({**payload, "environ": environ})
            self._channel.sendall(len(data).to_bytes(8, "big") + data)

    def _answer(self) -> dict[str, Any]:
        data = self._server.recv(PACKET_BYTES)
        if not data:
            raise ConnectionError(
                "the process that started and watched the training process was killed on host "
                f"{socket.gethostname()}: a process of sparkdl's fork server, see its executor's "
                "log and the log of the kernel"
            )
        message: dict[str, Any] = json.loads(data)
        if "error" in message:
            raise OSError(f"the fork server of this host could not serve: {message['error']}")
        return message

    @property
    def started(self) -> float | None:
        """The time at which its function was called, on the monotonic clock; None before."""
        return self._limits.started

    @property
    def outcome(self) -> Outcome | None:
        """The outcome that the process has sent; None as long as it has sent none."""
        # A copy of the process that the user forked may send a second outcome: the first counts.
        begin = self._received.find(b"o") + 1
        end = begin + 8 + int.from_bytes(self._received[begin : begin + 8], "big")
        complete = begin and begin + 8 < end <= len(self._received)
        return Outcome.from_json(self._received[begin + 8 : end]) if complete else None

    def wait(
        self,
        timeout_s: float | None = None,
        watch: "Callable[[], str | None] | None" = None,
        start_s: float | None = None,
    ) -> ProcessExit:
        """Wait until the process has ended, or cannot be ended.

        Args:
            timeout_s: seconds in its function after which the process is killed.
            watch: called several times a second; returns the reason to kill the process, or None.
            start_s: seconds until its function must be called, after which the process is killed.

        Raises:
            ConnectionError: if the process that watches the training process was killed.
        """
        self._limits.timeout_s, self._limits.start_s = timeout_s, start_s
        killed: Kill | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._channel, selectors.EVENT_READ)
            while True:
                until = killed.at + UNKILLABLE_S if killed else self._limits.next()
                left_s = max(0.0, until - time.monotonic())
                wait_s = min(left_s, WATCH_S) if watch and not killed else left_s
                events = selector.select(wait_s if wait_s < threading.TIMEOUT_MAX else None)
                ready = {key.fileobj for key, _ in events}
                # What the process has sent counts, also if this task was stopped for a while.
                if self._channel in ready:
                    self._receive(selector)
                elif self._server in ready:
                    return self._exit(self._last_answer(), killed)
                elif killed and not left_s:
                    return self._unkillable(killed)
                else:
                    killed = killed or self._kill_if_due(watch)

    def _kill_if_due(self, watch: "Callable[[], str | None] | None") -> Kill | None:
        now = time.monotonic()
        due = self._limits.overdue(now)
        if not due and watch and (reason := watch()):
            due = Kill(at=now, stopped=reason)
        if due:
            append_remark(self._log, due.remark)
            kill(self.pid)
        return due

    def _receive(self, selector: selectors.BaseSelector) -> None:
        chunk = b""
        with contextlib.suppress(ConnectionResetError):
            chunk = self._channel.recv(1 << 20)
        if not chunk:
            selector.unregister(self._channel)
            return
        self._received += chunk
        now = time.monotonic()
        self._limits.started = self._limits.started or now
        if self._limits.ended is None and self.outcome:
            self._limits.ended = now

    def _last_answer(self) -> dict[str, Any]:
        try:
            return self._answer()
        except OSError:
            # The kernel kills the training process with the one that watched it.
            kill(self.pid)
            kill_marked(self._marker, self.pid)
            remove_temporary(str(self._temporary))
            if self._limits.ended is None:
                raise
            return {**_NO_USAGE, "code": 0}

    def _unkillable(self, killed: Kill) -> ProcessExit:
        state = process_state(self.pid)
        waits = " (it waits for a disk, a network file system or a driver)" if state == "D" else ""
        reason = (
            f"the process {self.pid} on host {socket.gethostname()} could not be ended within "
            f"{UNKILLABLE_S:g} s; it is in state {state}{waits}"
        )
        append_remark(self._log, f"{reason}.")
        end = self._exit({**_NO_USAGE, "code": -signal.SIGKILL}, killed)
        return replace(end, unkillable=reason)

    def _exit(self, answer: Mapping[str, Any], killed: Kill | None) -> ProcessExit:
        now = time.monotonic()
        started = self.started or now
        append_remark(self._log, answer["fault"])
        return ProcessExit(
            code=answer["code"],
            outcome=self.outcome,
            starting_s=started - self._limits.begun,
            running_s=now - started,
            cpu_s=answer["cpu_s"],
            peak_memory_mb=answer["peak_memory_mb"],
            out_of_memory=answer["out_of_memory"],
            importing=_IMPORTING in answer["fault"],
            timed_out=bool(killed and killed.timed_out),
            late=bool(killed and killed.late),
            stopped=killed.stopped if killed else None,
        )

    def __enter__(self) -> "TrainingProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()  # The monitor kills the process and its descendants.
        self._channel.close()


def _temporary_folder(environ: Mapping[str, str]) -> tuple[Path, Path]:
    """Return a new name for a folder of temporary files, and the folder of the disk it is on.

    The name is short, as it is the beginning of the addresses of Unix sockets, which may have 107
    bytes. It is a link where Spark's own disk is another one.
    """
    name = f"sparkdl-{uuid.uuid4().hex[:12]}"
    own = environ.get("TMPDIR")
    if own and own != os.environ.get("TMPDIR") and os.access(own, os.W_OK):
        return Path(own, name), Path(own)  # The user chose the disk, with `env=`.
    return Path(tempfile.gettempdir(), name), local_disk()


def append_remark(log: Path, remark: str | None) -> None:
    """Write a remark, if there is one, into the log of a training process, if the disk takes it."""
    if remark:
        with contextlib.suppress(OSError), log.open("a") as file:
            file.write(f"sparkdl: {remark}\n")
