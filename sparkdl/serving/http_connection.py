"""Runs on the driver. A connection of the HTTP server: uvicorn's, with a deadline.

Of uvicorn's parsers, httptools is the faster one. It loses the body of a request with `Upgrade`,
which Java's HttpClient sends by default, and reads headers of any size. h11 does neither.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds in which the headers of a request have to come, and the rest of a body that was refused.
HEAD_S = 30.0
# The same for a connection whose request will be refused, as there are too many.
REFUSED_S = 2.0
# Bytes that a client may send ahead of the answers. uvicorn reads more after each answer, however
# many requests wait.
MAX_AHEAD_BYTES = 1 << 20


class _JoinedWrites:
    """A transport that sends the head of an answer together with its body.

    uvicorn writes them one after the other, which are two packets, two calls of the system, and two
    times that the client wakes up.

    Args:
        transport: the transport of the connection.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes, after a head that waits; or keep them if they are a head."""
        # An answer has a body, maybe an empty one. "100 Continue" has none.
        if not self._head and data.startswith(b"HTTP/1.1 ") and data[9:10] != b"1":
            self._head = data
        elif data or self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data if head else data)

    def close(self) -> None:
        """Send what waits, and end the connection."""
        if self._head:
            self.write(b"")
        self._transport.close()


class HttpConnection(H11Protocol):
    """A connection. All methods run in the loop of the server."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # A server would write a line for each request into the log of the user's program.
        self.access_log = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(_JoinedWrites(transport))  # type: ignore[arg-type]
        # uvicorn refuses the requests of all connections while there are too many.
        limit = self.config.limit_concurrency
        if limit is not None and len(self.connections) > limit:
            self._expect_head(REFUSED_S)
        else:
            self.limit_concurrency = None
            self._expect_head(HEAD_S)

    def data_received(self, data: bytes) -> None:
        """Read bytes."""
        super().data_received(data)
        if len(self.conn.trailing_data[0]) > MAX_AHEAD_BYTES:
            self.transport.abort()
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head(HEAD_S)
        else:
            self._expect_nothing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._expect_nothing()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            # It is the rest of a body that was refused: the request has its answer.
            self.transport.abort()

    def _expect_head(self, seconds: float) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(seconds, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _should_upgrade(self) -> bool:
        # Every request is answered in HTTP/1.1, and uvicorn need not warn of each.
        return False
