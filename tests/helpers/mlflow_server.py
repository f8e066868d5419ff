"""A tracking server of MLflow, from an environment of its own.

MLflow's server narrows the versions of packages that sparkdl uses, so that it is not installed
beside sparkdl. The environment is made once, by hand:

    python3 -m venv ~/.cache/sparkdl/mlflow
    ~/.cache/sparkdl/mlflow/bin/pip install 'mlflow>=3.17,<4'

The variable SPARKDL_TEST_MLFLOW names another folder. Tests skip without the environment. They
also need MLflow's client beside sparkdl: `pip install 'sparkdl-platform[mlflow]'`.
"""

import importlib.util
import os
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.helpers.ports import held_port
from tests.helpers.processes import eventually

__all__ = ["MISSING", "Gate", "mlflow_server"]

ENVIRONMENT = Path(
    os.environ.get("SPARKDL_TEST_MLFLOW", Path.home() / ".cache" / "sparkdl" / "mlflow")
)
START_S = 240.0

# The runners of jobs are seven more processes.
SMALL = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def _missing() -> str:
    """The reason for which the tests cannot run; empty if they can."""
    if importlib.util.find_spec("mlflow") is None:
        return "MLflow's client is not installed: pip install 'sparkdl-platform[mlflow]'"
    if not (ENVIRONMENT / "bin" / "python").exists():
        return f"no MLflow server in {ENVIRONMENT}; see tests/helpers/mlflow_server.py"
    return ""


MISSING = _missing()


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Start a server on loopback, with a database and artifacts in a folder; yield its URL."""
    if MISSING:
        pytest.skip(MISSING)
    with held_port() as port:
        yield from _served(folder, port)


def _served(folder: Path, port: int) -> Iterator[str]:
    """Run the server until the end of the block; yield its URL."""
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MLFLOW"))}
    command = [
        *(ENVIRONMENT / "bin" / "python", "-m", "mlflow", "server", "--workers", "1"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        *("--artifacts-destination", folder / "artifacts"),
    ]
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env={**outer, **SMALL},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, (folder / "server.log").read_text()
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5.0):
            return True
        return False

    try:
        assert eventually(answers, START_S), (folder / "server.log").read_text()
        yield url
    finally:
        # The server has children, for requests and for jobs.
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


class Gate:
    """A way to a server that a test can close, as a context manager.

    Attributes:
        url: the address of the gate.
        is_open: False refuses connections.
        loses_answers: True passes requests on, but closes the connection before the answer.
    """

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._target = host, int(port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self.is_open = True
        self.loses_answers = False
        self._links: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Gate":
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self.close()
        for thread in (self._thread, *self._threads):
            thread.join()
        for link in self._links:
            link.close()

    def close(self) -> None:
        """End all connections."""
        self.is_open = False
        for link in self._links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                if not self.is_open:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._links += [client, server]
                for ends in ((client, server, False), (server, client, True)):
                    thread = threading.Thread(target=self._pass_on, args=ends, daemon=True)
                    thread.start()
                    self._threads.append(thread)

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if is_answer and self.loses_answers:
                    break
                target.sendall(data)
        for link in (source, target):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
