"""Runs anywhere (pure). Requests and answers of HTTP, apart from the server that carries them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdl.serving.json_tensors import to_json

# A message may repeat what the client has sent.
MAX_MESSAGE = 1000

# Reads the body of a request; raises RequestError if it is too large, or does not come.
ReadBody = Callable[[], Awaitable[bytes]]


@dataclass(frozen=True)
class HttpRequest:
    """A request.

    Attributes:
        method: the method, such as `POST`.
        path: the path without the query; bytes written as `%5F` are decoded.
        headers: the headers by their name in lower case.
        body: the body as it came, maybe packed.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Answer:
    """An answer.

    Attributes:
        body: the body.
        status: the status.
        content_type: the type of the body.
        headers: further headers.
    """

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


def json_answer(value: Any, status: int = 200, indent: int | None = None) -> Answer:
    """Return an answer with a value as JSON.

    Example:
        >>> json_answer({"ready": True}).body
        b'{"ready": true}'
    """
    return Answer(to_json(value, indent), status)


def error_answer(message: str, status: int) -> Answer:
    """Return an answer with TensorFlow Serving's form of an error."""
    text = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}..."
    return json_answer({"error": text}, status)
