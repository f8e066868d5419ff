"""An S3 server on loopback that counts its calls, and fails some of them."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["S3Server"]

_COUNTS, _OUTAGE = "/-/counts", "/-/outage/"
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
READY_S = 30.0


class S3Server:
    """A server in a process of its own, with one bucket; a context manager.

    Args:
        one_in: one call in this many fails; 0 for none.
        seed: decides which.

    Attributes:
        bucket: the URL of the bucket.
        env: the variables by which clients find the server.
    """

    bucket = "s3://bucket"

    def __init__(self, one_in: int = 0, seed: int = 0) -> None:
        self._one_in = one_in
        self._seed = seed

    def __enter__(self) -> "S3Server":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self.env = {
            "AWS_ENDPOINT_URL": self._url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        command = [sys.executable, __file__, str(port), str(self._one_in), str(self._seed)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        self._wait()
        return self

    def _wait(self) -> None:
        program = "import s3fs; s3fs.S3FileSystem().mkdir('bucket')"
        deadline = time.monotonic() + READY_S
        while True:
            made = subprocess.run(
                [sys.executable, "-c", program], env={**os.environ, **self.env}, capture_output=True
            )
            if made.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server does not answer:\n{made.stderr.decode()}")

    def counts(self) -> dict[str, dict[str, int]]:
        """Return calls, failures, and bytes to and from the server, by HTTP method."""
        with urllib.request.urlopen(self._url + _COUNTS) as answer:
            counts: dict[str, dict[str, int]] = json.load(answer)
        return counts

    def fail_for(self, seconds: float) -> None:
        """Fail all calls for some seconds, from now on."""
        urllib.request.urlopen(f"{self._url}{_OUTAGE}{seconds}").close()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


class _Counting:
    """The application of the server.

    Args:
        application: answers the calls that do not fail.
        one_in: one call in this many fails; 0 for none.
        seed: decides which.
    """

    def __init__(self, application: Any, one_in: int, seed: int) -> None:
        self._application = application
        self._one_in = one_in
        self._chance = random.Random(seed)
        self._counts: dict[str, dict[str, int]] = {}
        self._lock = threading.Lock()
        self._down_until_s = 0.0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a call."""
        if environ["PATH_INFO"] == _COUNTS:
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._counts).encode()]
        if environ["PATH_INFO"].startswith(_OUTAGE):
            seconds = float(environ["PATH_INFO"].removeprefix(_OUTAGE))
            self._down_until_s = time.monotonic() + seconds
            start("200 OK", [("Content-Type", "text/plain")])
            return [b""]
        method, size = environ["REQUEST_METHOD"], int(environ.get("CONTENT_LENGTH") or 0)
        with self._lock:
            is_unlucky = bool(self._one_in) and self._chance.randrange(self._one_in) == 0
        fails = is_unlucky or time.monotonic() < self._down_until_s
        if fails:
            environ["wsgi.input"].read(size)
            start("503 Slow Down", [("Content-Type", "application/xml")])
            body = [_SLOW_DOWN]
        else:
            body = list(self._application(environ, start))
        with self._lock:
            zeros = {"calls": 0, "failures": 0, "bytes_in": 0, "bytes_out": 0}
            counts = self._counts.setdefault(method, zeros)
            counts["calls"] += 1
            counts["failures"] += fails
            counts["bytes_in"] += size
            counts["bytes_out"] += sum(map(len, body))
        return body


def main() -> None:
    """Serve until the process is ended."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    port, one_in, seed = map(int, sys.argv[1:])
    server = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", port, _Counting(server, one_in, seed), threaded=True)


if __name__ == "__main__":
    main()
