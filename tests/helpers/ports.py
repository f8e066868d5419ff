"""Ports for servers that must be told which one to take."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_port"]


@contextmanager
def held_port() -> Iterator[int]:
    """Yield a port of the loopback interface that nobody else is given within the block.

    The socket that holds it does not listen: a server that reuses addresses, as servers do, can
    listen on the port. A port that was only found to be free may be that of another test by then.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
