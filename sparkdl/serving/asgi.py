"""Runs on the driver. The model server as an ASGI application, which uvicorn carries.

Source of the names: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from sparkdl.serving.messages import Answer, HttpRequest, ReadBody, error_answer
from sparkdl.serving.request_error import STATUS, RequestError, invalid

# Seconds in which the next part of a body has to come.
BODY_S = 30.0


class Asgi:
    """An ASGI application. All methods run in the loop of the server.

    Args:
        answer: answers a request without a body, whose body it may read, and never fails.
        max_body_bytes: the size of the largest body.

    Attributes:
        num_open: number of requests that are not answered.
        is_draining: each answer ends its connection.
    """

    def __init__(
        self, answer: Callable[[HttpRequest, ReadBody], Awaitable[Answer]], max_body_bytes: int
    ) -> None:
        self._answer = answer
        self._max_body_bytes = max_body_bytes
        self._reading: set[Any] = set()
        self.num_open = 0
        self.is_draining = False

    def give_up_bodies(self) -> None:
        """Refuse the requests whose bodies have not come."""
        for task in self._reading:
            task.cancel()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        is_last = False
        self.num_open += 1
        try:
            head = _head(scope)
            answer = await self._answer(head, lambda: self._read(head, receive))
        except RequestError as exc:
            # Where the next request begins is not certain.
            answer = error_answer(str(exc), exc.status)
            is_last = True
        except asyncio.CancelledError:
            answer = error_answer("the server was stopped before it could answer", 503)
        finally:
            self.num_open -= 1
        headers = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.body))}
        # After a body that did not come, nothing on the connection can be trusted.
        if self.is_draining or is_last or answer.status == STATUS["TOO_SLOW"]:
            headers["Connection"] = "close"
        pairs = [(k.encode(), v.encode("latin-1")) for k, v in (headers | answer.headers).items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
        await send({"type": "http.response.body", "body": answer.body})

    async def _read(self, head: HttpRequest, receive: Any) -> bytes:
        """Read the body of a request.

        Raises:
            RequestError: if the body is too large, or does not come.
        """
        length = head.headers.get("content-length", "0")
        if len(length) > 20 or int(length) > self._max_body_bytes:
            raise self._too_large()
        task = asyncio.current_task()
        self._reading.add(task)
        try:
            return await self._read_parts(receive)
        except asyncio.TimeoutError:
            raise RequestError("TOO_SLOW", f"no part of the body came in {BODY_S} s") from None
        finally:
            self._reading.discard(task)

    async def _read_parts(self, receive: Any) -> bytes:
        parts = []
        size = 0
        goes_on = True
        while goes_on:
            message = await asyncio.wait_for(receive(), BODY_S)
            if message["type"] == "http.disconnect":
                raise RequestError("CANCELLED", "the client has ended the connection")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body_bytes:
                raise self._too_large()
            goes_on = message.get("more_body", False)
        return b"".join(parts)

    def _too_large(self) -> RequestError:
        return RequestError("TOO_LARGE", f"the body is larger than {self._max_body_bytes} bytes")


def _head(scope: Any) -> HttpRequest:
    """Return a request without its body.

    Raises:
        RequestError: if the request is ambiguous, or its address is none.

    Example:
        >>> headers = [(b"host", b"localhost"), (b"x-id", b"1"), (b"x-id", b"2")]
        >>> head = _head({"method": "GET", "path": "http://localhost/v2", "headers": headers})
        >>> head.path, head.headers
        ('/v2', {'host': 'localhost', 'x-id': '1, 2'})
    """
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        text = value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    if "content-length" in headers and "transfer-encoding" in headers:
        # A proxy may have read another body than this server would.
        raise invalid("the request has both Content-Length and Transfer-Encoding; expected one")
    path: str = scope["path"]
    if path.lower().startswith("http://"):
        # A client may name the host in the first line, as clients of a proxy do.
        try:
            path = urlsplit(path).path or "/"
        except ValueError as exc:
            raise invalid(f"the address of the request is none: {exc}") from None
    return HttpRequest(scope["method"], path, headers)
