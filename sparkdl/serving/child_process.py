"""Runs on the driver. Start a child process of a model server: a worker, or that of a model."""

import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any


def start_child(
    main: Callable[..., Any], *arguments: str, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that calls a function with one end of a private socket.

    The process finds the modules that this one finds, and none of the working folder. It is the
    first one of a group, so that the processes that it starts can be ended with it.

    Args:
        main: a function of a module; its last argument is the number of the socket's file.
        arguments: the arguments before it.
        environment: the environment of the process.

    Returns:
        The process, and the other end of the socket.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        values = ", ".join(map(repr, (*arguments, theirs.fileno())))
        program = (
            f"import sys; sys.path[:] = {[*filter(None, sys.path)]!r}; "
            f"from {main.__module__} import {main.__name__}; {main.__name__}({values})"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env=environment,
        )
    return process, Connection(ours.detach())
