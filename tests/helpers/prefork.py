"""A process that imports a framework once and forks the processes of many tests.

Importing TensorFlow costs seconds of CPU, forking a process that has imported it milliseconds.
The server must not compute: a process that has run TensorFlow cannot be forked.
"""

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl.host.os_processes import die_with

ROOT = Path(__file__).parents[2]
PACKET_BYTES = 1 << 17
# Settings that frameworks read when they are imported: a server for each combination of them.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}
IMPORT_SETTINGS = ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND", "JAX_PLATFORMS")

_servers: dict[Any, tuple[socket.socket, Any]] = {}


class Forked:
    """A process that a server has forked, with the methods of `subprocess.Popen` in use here."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid: int = json.loads(connection.recv(100))["pid"]
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            self._connection.settimeout(timeout if timeout is None else max(timeout, 1e-3))
            try:
                packet = self._connection.recv(100)
            except TimeoutError as exc:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from exc
            self._connection.close()
            self._code = json.loads(packet)["code"] if packet else -signal.SIGKILL
        return self._code

    def kill(self) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def fork(
    preload: Sequence[str],
    arguments: Sequence[str],
    env: Mapping[str, str],
    log: int,
    channel: int | None = None,
) -> Forked:
    """Run `tests.helpers.gang` in a process that has imported these modules already.

    Args:
        preload: names of modules.
        arguments: program, folder and rank.
        env: environment variables, beside those of this process.
        log: descriptor of the file that takes the output.
        channel: descriptor of the socket by which the process joins a ring; its number there is
            put into SPARKDL_CONTEXT.
    """
    settings = {name: env[name] for name in IMPORT_SETTINGS if name in env}
    server = _server(preload, settings)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        request = {"arguments": arguments, "env": {**_volatile(), **env}, "cwd": str(ROOT)}
        descriptors = [theirs.fileno(), log, *([] if channel is None else [channel])]
        socket.send_fds(server, [json.dumps(request).encode()], descriptors)
    return Forked(mine)


def _volatile() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith(("SPARKDL_", "TMPDIR"))}


def _server(preload: Sequence[str], settings: dict[str, str]) -> socket.socket:
    kind = (tuple(preload), tuple(sorted(settings.items())))
    if kind not in _servers:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = str(theirs.fileno())
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.prefork", number, str(os.getpid()), *preload],
                cwd=ROOT,
                env={**os.environ, **settings, "CUDA_VISIBLE_DEVICES": "", **QUIET},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        _servers[kind] = mine, process
    return _servers[kind][0]


def _serve(server: socket.socket) -> int:
    """Fork a process for each request, until the tests are over; returns in each of them too."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    me = os.getpid()
    while True:
        packet, descriptors, _, _ = socket.recv_fds(server, PACKET_BYTES, 3)
        if not packet:
            return 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Threads of native libraries.
            watcher = os.fork()
        if watcher == 0:
            server.close()
            die_with(me)
            return _watch(json.loads(packet), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(request: Any, answer: int, log: int, channel: int | None = None) -> int:
    """Fork the process, report its end; the process returns from here as well."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    me = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        with socket.socket(fileno=answer) as connection:
            connection.send(json.dumps({"pid": pid}).encode())
            for descriptor in (log, channel):
                if descriptor is not None:
                    os.close(descriptor)
            _, status = os.waitpid(pid, 0)
            with contextlib.suppress(OSError):
                code = os.waitstatus_to_exitcode(status)
                connection.send(json.dumps({"code": code}).encode())
        os._exit(0)
    os.close(answer)
    os.setsid()
    die_with(me)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ.update(request["env"])
    if channel is not None:
        context = json.loads(os.environ["SPARKDL_CONTEXT"]) | {"ring": channel}
        os.environ["SPARKDL_CONTEXT"] = json.dumps(context)
    os.chdir(request["cwd"])
    run: Any = importlib.import_module("tests.helpers.gang").run
    run(*request["arguments"])
    return 0


if __name__ == "__main__":
    number, parent, *modules = sys.argv[1:]
    die_with(int(parent))
    for module in modules:
        importlib.import_module(module)
    sys.exit(_serve(socket.socket(fileno=int(number))))
