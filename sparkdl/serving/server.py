"""Runs on the driver. A model server that was started, as the user sees it."""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from sparkdl.serving.sockets import address_of


class Server:
    """A model server in threads of this process or in its workers, until `stop`.

    `serving.start` returns it. As a context manager, it stops the server at its end. The end of
    this process ends it, too.

    Args:
        address: the host and the port of HTTP.
        models: the names of the models.
        token: the secret that requests need; None if they need none.
        grpc_address: see below.
        stop: answers what has come and ends the server; takes seconds, see `stop`.

    Attributes:
        url: the address, such as `http://127.0.0.1:8501`.
        token: the secret that requests need, as `Authorization: Bearer TOKEN`; None on a loopback
            interface.
        grpc_address: the address of the gRPC API, such as `127.0.0.1:8500`; None if there is none.
    """

    def __init__(
        self,
        address: tuple[str, int],
        models: Sequence[str],
        *,
        token: str | None,
        grpc_address: str | None,
        stop: Callable[[float], None],
    ) -> None:
        self._models = models
        self._stop = stop
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()
        self.url = f"http://{address_of(*address)}"
        self.token = token
        self.grpc_address = grpc_address

    @property
    def models(self) -> list[str]:
        """The names of the models."""
        return [*self._models]

    def wait(self) -> None:
        """Wait until another thread calls `stop`."""
        self._is_stopped.wait()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Answer all requests that have come, free the port, and unload the models.

        Args:
            timeout_s: seconds after which requests that were not answered are given up.
        """
        with self._lock:
            if not self._is_stopped.is_set():
                self._stop(timeout_s)
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
