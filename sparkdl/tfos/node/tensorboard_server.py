"""Runs in the training process. Run TensorBoard beside the function of a node."""

import os
import socket
import subprocess
import sys

__all__ = ["TensorBoardServer", "start"]

# Time that TensorBoard gets to exit after SIGTERM.
EXIT_GRACE_S = 5.0


class TensorBoardServer:
    """A running TensorBoard. The context manager ends TensorBoard on exit.

    Attributes:
        pid: process id of TensorBoard.
        port: port on which TensorBoard listens.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self._process = process
        self.pid = process.pid
        self.port = port

    def __enter__(self) -> "TensorBoardServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start(log_dir: str, address: str) -> TensorBoardServer:
    """Start TensorBoard on the port in `TENSORBOARD_PORT`, or else on a free port.

    Args:
        log_dir: folder of the event files.
        address: IP address on which TensorBoard listens.
    """
    host = address.strip("[]")
    port = int(os.environ.get("TENSORBOARD_PORT") or _free_port(host))
    command = [sys.executable, "-m", "tensorboard.main", "--reload_multifile=True"]
    options = [f"--logdir={log_dir}", f"--host={host}", f"--port={port}"]
    process = subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL)
    return TensorBoardServer(process, port)


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])
