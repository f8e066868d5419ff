"""Runs in the process of a model. Load a model with a loader, and compute what the server asks."""

import atexit
import os
import select
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.inference.array_messages import receive, send
from sparkdl.inference.loader_model import read_loader_model
from sparkdl.inference.ragged_rows import RaggedRows

# The time for what a loader has left to do when the process ends, such as temporary folders.
_TIDY_S = 1.5


def main(folder: str, fd: int) -> None:
    """Answer requests until the server ends.

    Args:
        folder: the local folder of the model.
        fd: the end of a private socket to the server.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The server ends this process.
    os.register_at_fork(after_in_child=lambda: os.close(fd))
    atexit.register(_end_others)  # The first to be registered is the last to be called.
    threading.Thread(target=_end_with, args=(fd,), daemon=True).start()
    connection = Connection(fd)
    try:
        functions = read_loader_model(Path(folder)).trace(Path(folder))
    except BaseException as exc:
        _send_error(connection, exc)
        raise
    send(connection, [])
    while True:
        try:
            arrays, header = receive(connection)
        except EOFError:
            return
        try:
            outputs = functions[header["signature"]](arrays)
            send(connection, [_plain(output) for output in outputs.values()])
        except Exception as exc:  # noqa: BLE001
            _send_error(connection, exc)


def _plain(output: Any) -> Any:
    """Return an array, or a list of the rows of different lengths."""
    if not isinstance(output, RaggedRows):
        return output
    return np.split(output.values, np.cumsum(output.lengths[0])[:-1])


def _send_error(connection: Connection, exc: BaseException) -> None:
    traceback.print_exc()
    kinds = [kind.__name__ for kind in type(exc).__mro__]
    send(connection, [], error=str(exc) or kinds[0], kinds=kinds)


def _end_others() -> None:
    """End the processes that the loader has started and left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)


def _end_with(fd: int) -> None:
    """End this process after the server, whatever the model is doing, and what it has started."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    poll.poll()
    time.sleep(_TIDY_S)
    os.killpg(0, signal.SIGKILL)
