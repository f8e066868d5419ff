"""Runs on the driver. The ports of a model server: of one process, or shared by its workers."""

import contextlib
import socket

from sparkdl.errors import ConfigError

BACKLOG = 1024
# Seconds after which a connection is closed that has no request, or whose client reads nothing.
IDLE_S = 120


def listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Return a socket that listens; connections wait until a server takes them.

    Args:
        host: the address.
        port: the port; 0 takes a free one.
        is_shared: other processes of the same user listen on the port, too.

    Raises:
        ConfigError: if the address cannot be used.
    """
    with contextlib.ExitStack() as stack:
        bound = stack.enter_context(_bind(host, port, is_shared))
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Connections inherit it: Linux ends those whose clients read nothing.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, IDLE_S * 1000)
        try:
            # Two sockets may be bound to one port until one of them listens.
            bound.listen(BACKLOG)
        except OSError as exc:
            raise _unusable(host, port, exc) from exc
        stack.pop_all()
        return bound


def _bind(host: str, port: int, is_shared: bool) -> socket.socket:
    with contextlib.ExitStack() as stack:
        try:
            if not isinstance(port, int) or not 0 <= port <= 65535:
                raise OverflowError("a port is a number from 0 to 65535")
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            bound = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind(address)
        except (OSError, OverflowError, TypeError, UnicodeError) as exc:
            raise _unusable(host, port, exc) from exc
        stack.pop_all()
        return bound


def _unusable(host: str, port: int, exc: Exception) -> ConfigError:
    return ConfigError(
        f"host is {host!r} and port is {port!r}, which cannot be used: {exc}. Pass another port, "
        "or 0 for a free one."
    )


def address_of(host: str, port: int) -> str:
    """Return the address of a port as clients write it.

    Example:
        >>> address_of("127.0.0.1", 8501), address_of("::1", 8501)
        ('127.0.0.1:8501', '[::1]:8501')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class SharedPort:
    """A port on which the workers of one server listen, and no other server.

    The kernel spreads connections over all sockets that listen with SO_REUSEPORT. Any two processes
    of a user may have such sockets, so the port is first taken alone, as by a server of one
    process.

    Args:
        host: the address.
        port: the port; 0 takes a free one.

    Attributes:
        address: the address as a number, and the port.
        port: the port.

    Raises:
        ConfigError: if the address cannot be used.
    """

    def __init__(self, host: str, port: int) -> None:
        with contextlib.ExitStack() as stack:
            self._alone = stack.enter_context(listen(host, port))
            self.address: tuple[str, int] = self._alone.getsockname()[:2]
            self.port = self.address[1]
            # Nobody else could have come before; from now on, sockets with the same option can.
            self._alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # It takes no connections, and keeps the port while workers end and start.
            self._bound = stack.enter_context(_bind(host, self.port, is_shared=True))
            # While no worker listens, it would leave the port to any user who has this option.
            self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            stack.pop_all()

    def share(self) -> None:
        """Leave all connections to the workers, which listen."""
        self._alone.close()

    def close(self) -> None:
        """Free the port."""
        self._alone.close()
        self._bound.close()
