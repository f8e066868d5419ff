"""Runs on the driver. A connection of the HTTP server: requests in, answers out, in their order.

The parser is httptools, the one of Node.js. Source of the rules: https://www.rfc-editor.org/rfc/rfc9112
"""

import asyncio
import http
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import cast
from urllib.parse import unquote_to_bytes

import httptools

from sparkdl.serving.messages import Answer, HttpRequest, error_answer

__all__ = ["HttpProtocol", "Shared"]

MAX_HEADER_BYTES = 1 << 16
# Seconds for which the rest of a refused request is read and thrown away: a client that still sends
# would not see the answer if the connection were closed.
REFUSED_S = 2.0

_STATUS = {
    499: "HTTP/1.1 499 Cancelled\r\n",
    **{int(code): f"HTTP/1.1 {int(code)} {code.phrase}\r\n" for code in http.HTTPStatus},
}

_logger = logging.getLogger("sparkdl.serving")


@dataclass(kw_only=True)
class Shared:
    """Everything that the connections of a server have in common.

    Attributes:
        answer: answers a request, and never fails.
        max_body_bytes: the size of the largest body.
        max_connections: number of connections; further ones are answered with 503.
        connections: the connections that are open.
        is_draining: the connections end with the next answer.
        date: the header `Date`.
    """

    answer: Callable[[HttpRequest], Awaitable[Answer]]
    max_body_bytes: int
    max_connections: int
    connections: "set[HttpProtocol]" = field(default_factory=set)
    is_draining: bool = False
    date: str = field(default_factory=lambda: formatdate(usegmt=True))


class _Refused(Exception):
    """A request that is no HTTP, or too large."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpProtocol(asyncio.Protocol):
    """A connection. All methods run in the loop of the server.

    Args:
        shared: what the connections have in common.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        # Requests that were read, or the answer where there is no request, and whether the
        # connection goes on after the answer.
        self._requests: deque[tuple[HttpRequest | Answer, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._can_write = True
        self._is_refused = False
        self._is_in_head = self._is_in_body = False
        self._num_read = 0
        self.last_active = self._loop.time()
        self._begin()

    @property
    def is_busy(self) -> bool:
        """The connection has a request, or has sent a part of one."""
        is_reading = (self._is_in_head or self._is_in_body) and not self._is_refused
        return bool(self._task or self._requests or is_reading)

    @property
    def has_unread(self) -> bool:
        """The client has not read all answers."""
        return self._transport.get_write_buffer_size() > 0

    @property
    def num_open(self) -> int:
        """Number of requests that have come and are not answered."""
        return len(self._requests) + (self._task is not None)

    def close(self) -> None:
        """End the connection after everything was written; at once if it cannot be written."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    # ---- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._shared.connections.add(self)
        if len(self._shared.connections) > self._shared.max_connections:
            self._refuse(_Refused(503, "the server has too many connections; try again later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End. A request that is being computed ends by itself."""
        self._shared.connections.discard(self)
        self._requests.clear()
        self._parser = None

    def data_received(self, data: bytes) -> None:
        """Read bytes, and answer the requests that are complete."""
        self.last_active = self._loop.time()
        if self._is_refused:
            return
        self._num_read += len(data)
        try:
            self._parser.feed_data(data)
            if self._is_in_head and self._num_read > MAX_HEADER_BYTES:
                raise _Refused(431, f"the headers have more than {MAX_HEADER_BYTES} bytes")
            # A body in pieces may have more bytes around the pieces than in them.
            if self._num_read > 2 * self._shared.max_body_bytes + MAX_HEADER_BYTES:
                raise self._too_large()
        except httptools.HttpParserUpgrade:
            # The request is answered in this protocol, and the connection ends.
            self._is_refused = True
        except httptools.HttpParserError as exc:
            cause = exc.__context__
            self._refuse(cause if isinstance(cause, _Refused) else _Refused(400, f"no HTTP: {exc}"))
        except _Refused as exc:
            self._refuse(exc)

    def pause_writing(self) -> None:
        """Answer nothing more until the client has read the answers."""
        self._can_write = False

    def resume_writing(self) -> None:
        """Go on."""
        self._can_write = True
        self.last_active = self._loop.time()
        self._next()

    # ---- called by the parser

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._begin()
        self._is_in_head = True

    def on_url(self, url: bytes) -> None:
        """Take a part of the address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._num_header_bytes += len(key) + len(text)
        if self._num_header_bytes > MAX_HEADER_BYTES:
            raise _Refused(431, f"the headers have more than {MAX_HEADER_BYTES} bytes")
        if key in self._headers:
            if key == "host":
                raise _Refused(400, "the request has two headers Host")
            text = f"{self._headers[key]}, {text}"
        self._headers[key] = text

    def on_headers_complete(self) -> None:
        """Refuse a request whose body is too large before it comes."""
        self._is_in_head, self._is_in_body = False, True
        length = self._headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._shared.max_body_bytes:
            raise self._too_large()
        if self._headers.get("expect", "").lower() == "100-continue" and not self.num_open:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body.append(body)
        self._num_body_bytes += len(body)
        if self._num_body_bytes > self._shared.max_body_bytes:
            raise self._too_large()

    def on_message_complete(self) -> None:
        """Answer a request, after those before it."""
        self._is_in_head = self._is_in_body = False
        method = self._parser.get_method().decode("latin-1")
        request = HttpRequest(method, _path(self._url), self._headers, b"".join(self._body))
        self._is_old = self._parser.get_http_version() == "1.0"
        self._requests.append((request, self._parser.should_keep_alive()))
        self._num_read = 0
        self._next()

    # ---- requests and answers

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._num_header_bytes = self._num_body_bytes = 0

    def _next(self) -> None:
        """Answer the next request, unless another one is being answered."""
        if self._transport.is_closing():
            return
        if self._requests and self._task is None and self._can_write:
            self._task = self._loop.create_task(self._answer(*self._requests.popleft()))
        if self._requests:
            self._transport.pause_reading()
        elif self._task is None:
            self._transport.resume_reading()

    async def _answer(self, asked: HttpRequest | Answer, goes_on: bool) -> None:
        try:
            is_head = isinstance(asked, HttpRequest) and asked.method == "HEAD"
            answer = asked if isinstance(asked, Answer) else await self._shared.answer(asked)
            if not self._transport.is_closing():
                self._write(answer, is_head, goes_on)
        finally:
            self._task = None
        self._next()

    def _write(self, answer: Answer, is_head: bool, goes_on: bool) -> None:
        is_last = self._is_refused and not self._requests
        goes_on = goes_on and not is_last and not self._shared.is_draining
        connection = ""
        if not goes_on:
            connection = "Connection: close\r\n"
        elif self._is_old:
            connection = "Connection: keep-alive\r\n"
        further = "".join([f"{name}: {value}\r\n" for name, value in answer.headers.items()])
        head = (
            f"{_STATUS[answer.status]}Date: {self._shared.date}\r\n"
            f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
            f"{connection}{further}\r\n"
        ).encode("latin-1")
        self._transport.write(head if is_head else head + answer.body)
        self.last_active = self._loop.time()
        if not goes_on:
            self._end()

    def _refuse(self, refused: _Refused) -> None:
        """Answer what is no request, after the requests before it, and end the connection."""
        self._is_refused = True
        self._requests.append((error_answer(str(refused), refused.status), False))
        self._next()

    def _end(self) -> None:
        """Close the connection; where the client may still send, after it has had the answer."""
        self._requests.clear()
        if self._is_refused and self._transport.can_write_eof():
            self._transport.write_eof()
            self._loop.call_later(REFUSED_S, self._transport.close)
        else:
            self._transport.close()

    def _too_large(self) -> _Refused:
        return _Refused(413, f"the body is larger than {self._shared.max_body_bytes} bytes")


def _path(url: bytes) -> str:
    """Return the path of an address, which may begin with a host.

    Example:
        >>> _path(b"/v1/models/a%5Fb?x=1"), _path(b"http://localhost:8501/v2")
        ('/v1/models/a_b', '/v2')
    """
    if not url.startswith(b"/"):
        try:
            url = httptools.parse_url(url).path or b"/"
        except httptools.HttpParserInvalidURLError:
            raise _Refused(400, "the address of the request is wrong") from None
    path = url.partition(b"?")[0]
    return (unquote_to_bytes(path) if b"%" in path else path).decode(errors="replace")
