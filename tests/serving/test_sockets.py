"""The port that the workers of a server share is theirs alone."""

import socket

import pytest

from sparkdl.serving.sockets import SharedPort, listen


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_no_stranger_takes_the_port_while_no_worker_listens(host: str) -> None:
    """All workers may have ended. Who listens then would get the tokens of clients."""
    port = SharedPort(host, 0)
    try:
        port.share()
        for address in (host, "127.0.0.1"):
            with socket.socket() as stranger:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with pytest.raises(OSError, match="in use"):
                    stranger.bind((address, port.port))
        with listen(host, port.port, is_shared=True), listen(host, port.port, is_shared=True):
            socket.create_connection(("127.0.0.1", port.port), 60).close()
    finally:
        port.close()
