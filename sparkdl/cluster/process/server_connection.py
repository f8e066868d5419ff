"""Runs in a Spark task. Connect to the fork server of this host, and start it if there is none."""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl.cluster.environ import without_credentials
from sparkdl.cluster.process.fork_server import FUNCTION, PACKET_BYTES
from sparkdl.cluster.process.server_folder import dial, locked, private_folder, sweep
from sparkdl.host.os_processes import in_yarn_container, process_start, this_node


@dataclass(frozen=True)
class PreloadCall:
    """The function of `preload=`, as a fork server gets it.

    Attributes:
        run: the run, which has a fork server of its own.
        pickled: the pickled function, modules and seed, see `preload_call`.
    """

    run: str
    pickled: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Start:
    """The conditions for a fork: everything that must be in place before it.

    Attributes:
        application: the Spark application id; its tasks on a host share a fork server.
        order: the framework that is imported before the fork, after what the program imports before
            it; each such order has a fork server of its own.
        preload: modules to import before the fork.
        env: environment variables to set before anything is imported.
        call: the function to call before the fork, whose result the processes share. Without a
            shared server, each training process calls it itself.
        shared: use the fork server of the host; False starts a server for one process.
        is_task: the caller is a Spark task, and the fork server lives as long as the executor of
            that task; False for a process that the fork server has forked itself.
    """

    application: str
    order: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    call: PreloadCall | None = None
    shared: bool = True
    is_task: bool = True


def _server_key(start: Start) -> str:
    """Return the name of a fork server: by application, host, interpreter and imports.

    Hosts and containers may share the folder of the servers, but a process that is forked on
    another host would have the network of that host.
    """
    parts = [
        start.application,
        this_node(),
        Path("/proc/self/cgroup").read_text(),
        os.readlink("/proc/self/ns/pid"),
        # Each container of YARN has a server, as YARN counts the memory of a container.
        os.getsid(0) if in_yarn_container() else None,
        sys.executable,
        start.order,
        sorted(start.env.items()),
        start.call and [start.call.run, hashlib.sha256(start.call.pickled).hexdigest()],
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
                sweep(base)  # Also the folder of a server that was killed.
                if start.shared and start.call:
                    _end_unused(base, start.application)
                _start_server(base / key, start)
                return dial(base / key)


def _end_unused(base: Path, application: str) -> None:
    """Let servers that hold the result of a function for other runs end, unless they are in use."""
    for function in base.glob(f"*/{FUNCTION}"):
        with contextlib.suppress(OSError), dial(function.parent) as server:
            server.send(json.dumps({"leave": application}).encode())


def _start_server(folder: Path, conditions: Start) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    if conditions.shared and conditions.call:
        (folder / FUNCTION).write_bytes(conditions.call.pickled)
    # The same modules as in this worker, whatever way they reached it; not the working folder's.
    start = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from sparkdl.cluster.process.fork_server import main; main({str(folder)!r})"
    )
    subprocess.run(
        [sys.executable, "-c", start],
        # The processes that it forks inherit this, whatever they change in `os.environ`.
        env={**without_credentials(os.environ, ""), **conditions.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def packet(start: Start, **more: Any) -> bytes:
    """Return the packet of a request to a fork server."""
    lease = _lease() if start.shared and start.is_task else None
    request = {
        "application": start.application,
        "lease": lease,
        "preload": start.preload,
        "path": sys.path,
        **more,
    }
    data = json.dumps(request).encode()
    if len(data) > PACKET_BYTES:
        raise ValueError(
            f"sys.path of the executors has {len(sys.path)} entries, {len(data)} bytes; expected "
            f"at most {PACKET_BYTES} bytes. Put the packages into fewer folders or archives."
        )
    return data


def _lease() -> tuple[int, int | None]:
    """Return the process as long as which the fork server lives: Spark's daemon, or the executor.

    Raises:
        ConnectionError: if that process has died, so that this one is a child of another process.
    """
    daemon = os.getppid()
    # The executor may be the first process of a container; otherwise that is no process of Spark.
    if daemon == 1 and Path("/proc/1/comm").read_text().strip() != "java":
        raise ConnectionError("the daemon of Spark's Python workers on this host has died")
    return daemon, process_start(daemon)


def warm(start: Start) -> None:
    """Let the fork server of this host begin its imports; do not wait for them."""
    if start.shared:
        with connect(start) as server:
            server.send(packet(start, fork=False))
