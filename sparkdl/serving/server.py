"""Runs on the driver. A model server that was started, as the user sees it."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from sparkdl.serving.model_set import ModelSet

if TYPE_CHECKING:
    from sparkdl.serving.grpc_server import GrpcServer
    from sparkdl.serving.http_server import HttpServer


class Server:
    """A model server in threads of this process, until `stop` or the end of the process.

    `serving.start` returns it. As a context manager, it stops the server at its end.

    Args:
        http: the HTTP server.
        models: the models.
        token: the secret that requests need; None if they need none.
        grpc: the gRPC server; None if there is none.
        on_drain: called when the server begins to stop.
        on_stop: called when the last request was answered.

    Attributes:
        url: the address, such as `http://127.0.0.1:8501`.
        token: the secret that requests need, as `Authorization: Bearer TOKEN`; None on a loopback
            interface.
        grpc_address: the address of the gRPC API, such as `127.0.0.1:8500`; None if there is none.
    """

    def __init__(
        self,
        http: "HttpServer",
        models: ModelSet,
        *,
        token: str | None,
        grpc: "GrpcServer | None" = None,
        on_drain: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        self._http = http
        self._models = models
        self._on_drain = on_drain
        self._on_stop = on_stop
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()
        host, port = http.address
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self.token = token
        self._grpc = grpc
        self.grpc_address = grpc.address if grpc else None

    @property
    def models(self) -> list[str]:
        """The names of the models."""
        return self._models.names

    def wait(self) -> None:
        """Wait until another thread calls `stop`."""
        self._is_stopped.wait()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Answer all requests that have come, free the port, and unload the models.

        Args:
            timeout_s: seconds after which requests that were not answered are given up.
        """
        with self._lock:
            if self._is_stopped.is_set():
                return
            self._on_drain()
            self._models.stop()
            deadline = time.monotonic() + timeout_s
            # Both APIs have the whole time.
            grpc_end = self._grpc.drain(timeout_s) if self._grpc else None
            self._http.drain(timeout_s)
            if self._grpc and grpc_end:
                grpc_end.wait()
                self._grpc.close()
            self._http.close()
            self._on_stop()
            self._models.close(max(0.0, deadline - time.monotonic()))
            self._is_stopped.set()

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<serving {', '.join(self.models)} at {self.url}>"
