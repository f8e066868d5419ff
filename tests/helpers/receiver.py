"""A server on loopback that remembers the JSON that is posted to it."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Receiver"]


class Receiver(ThreadingHTTPServer):
    """A server on loopback that remembers what it gets.

    Attributes:
        posts: the path, the headers and the JSON value of each request; None for a GET.
        codes: the answers to the first requests; later ones are answered with 200.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.posts: list[tuple[str, dict[str, str], Any]] = []
        self.codes: list[int] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(body)

    def do_GET(self) -> None:
        self._answer(None)

    def _answer(self, body: Any) -> None:
        self.server.posts.append((self.path, dict(self.headers), body))
        self.send_response(self.server.codes.pop(0) if self.server.codes else 200)
        self.send_header("Content-Length", "0")
        self.send_header("Location", f"{self.server.address}/other")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass
