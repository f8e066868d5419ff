"""Runs on the driver. The gRPC server beside the HTTP server: its port, limits, and its end."""

import threading
from collections.abc import Sequence
from typing import Any

import grpc

from sparkdl.errors import ConfigError
from sparkdl.serving.places import MAX_OPEN
from sparkdl.serving.request_threads import RequestThreads
from sparkdl.serving.sockets import address_of

# A request holds a thread while it waits for its model.
THREADS = MAX_OPEN
# Seconds after which a connection is closed that has no request, or does not speak HTTP/2.
IDLE_S = 600
HANDSHAKE_S = 30


class GrpcServer:
    """A gRPC server in threads of this process; it holds its port from the beginning.

    Args:
        host: the address on which the server listens.
        port: the port; 0 takes a free one.
        max_bytes: the size of the largest request.
        is_shared: other processes of the same user listen on the port, too.

    Attributes:
        address: the address for clients, such as `127.0.0.1:8500`.

    Raises:
        ConfigError: if the address cannot be used.
    """

    def __init__(self, host: str, port: int, max_bytes: int, *, is_shared: bool = False) -> None:
        self._pool = RequestThreads(THREADS, "sparkdl-serving-grpc")
        self._server: Any = grpc.server(
            self._pool,
            maximum_concurrent_rpcs=MAX_OPEN,
            options=[
                ("grpc.max_receive_message_length", max_bytes),
                ("grpc.max_send_message_length", -1),
                # A client connects again when it has a request.
                ("grpc.max_connection_idle_ms", IDLE_S * 1000),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
                # Two servers must not share a port without knowing it.
                ("grpc.so_reuseport", int(is_shared)),
            ],
        )
        try:
            if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
                raise RuntimeError("a port is a number from 0 to 65535")
            bound_port = self._server.add_insecure_port(address_of(host, port))
        except RuntimeError as exc:
            raise ConfigError(
                f"host is {host!r} and grpc_port is {port!r}, which cannot be used: {exc}. Pass "
                "another port, or 0 for a free one."
            ) from None
        self.address = address_of(host, bound_port)

    def start(self, handlers: Sequence[Any]) -> None:
        """Answer requests from now on."""
        self._server.add_generic_rpc_handlers(tuple(handlers))
        self._server.start()

    def drain(self, timeout_s: float) -> threading.Event:
        """Take no more requests; all requests that have come are answered.

        Args:
            timeout_s: seconds after which requests that were not answered are given up.

        Returns:
            An event that is set at the end.
        """
        end: threading.Event = self._server.stop(timeout_s)
        return end

    def close(self) -> None:
        """Give up all requests, and end the threads."""
        self._server.stop(0).wait()
        self._pool.shutdown(cancel_futures=True)
