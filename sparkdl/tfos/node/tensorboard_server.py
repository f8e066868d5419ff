"""Runs in the training process. TensorBoard beside a node's function."""

import os
import socket
import subprocess
import sys

__all__ = ["Board", "start"]

# TensorBoard gets so long to end.
END_S = 5.0


class Board:
    """A TensorBoard that is running; a context manager that ends it.

    Attributes:
        pid, port: its process, and where it listens.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self._process = process
        self.pid, self.port = process.pid, port

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start(log_dir: str, address: str) -> Board:
    """Start TensorBoard.

    Args:
        log_dir: what it shows.
        address: where it listens: on `TENSORBOARD_PORT`, else on a port that is free.
    """
    port = int(os.environ.get("TENSORBOARD_PORT") or _free(address))
    command = [sys.executable, "-m", "tensorboard.main", "--reload_multifile=True"]
    where = [f"--logdir={log_dir}", f"--host={address.strip('[]')}", f"--port={port}"]
    return Board(subprocess.Popen([*command, *where], stdin=subprocess.DEVNULL), port)


def _free(address: str) -> int:
    with socket.create_server((address.strip("[]"), 0)) as probe:
        return int(probe.getsockname()[1])
