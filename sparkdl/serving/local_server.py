"""Runs on the driver. The part of a model server that answers requests in this process."""

import socket
from typing import TYPE_CHECKING

from sparkdl.serving.application import Application
from sparkdl.serving.calls import Catalog
from sparkdl.serving.http_server import HttpServer
from sparkdl.serving.inference_log import InferenceLog
from sparkdl.serving.metrics import Metrics
from sparkdl.serving.settings import Settings

if TYPE_CHECKING:
    from sparkdl.serving.grpc_server import GrpcServer


class LocalServer:
    """Answers requests by HTTP, and maybe by gRPC, in threads of this process.

    Args:
        bound: the socket of HTTP, which listens.
        grpc: the server for gRPC, which has its port; None for HTTP only.
        settings: the settings.
    """

    def __init__(self, bound: socket.socket, grpc: "GrpcServer | None", settings: Settings) -> None:
        self._settings = settings
        self._grpc = grpc
        self._http = HttpServer(bound, settings.max_bytes)

    @property
    def num_open(self) -> int:
        """Number of requests by HTTP that are not answered."""
        return self._http.num_open

    @property
    def num_connections(self) -> int:
        """Number of connections of clients by HTTP."""
        return self._http.num_connections

    def start(self, catalog: Catalog, metrics: Metrics, log: InferenceLog | None) -> None:
        """Answer requests from now on."""
        settings = self._settings
        observers = [metrics.observe, *([log.observe] if log else [])]
        self._log = log
        self._application = Application(
            catalog,
            token=settings.token,
            observers=observers,
            metrics=metrics.page,
            max_body_bytes=settings.max_bytes,
            timeout_s=settings.timeout_s,
        )
        if self._grpc:
            from sparkdl.serving.grpc_services import GrpcServices

            services = GrpcServices(
                catalog,
                token=settings.token,
                observers=observers,
                max_bytes=settings.max_bytes,
                timeout_s=settings.timeout_s,
            )
            self._grpc.start(services.handlers())
        self._http.start(self._application.answer_soon)

    def drain(self, timeout_s: float) -> None:
        """Answer all requests that have come, free the ports, and write the log.

        Args:
            timeout_s: seconds after which requests that were not answered are given up.
        """
        self._application.drain()
        # Both APIs have the whole time.
        grpc_end = self._grpc.drain(timeout_s) if self._grpc else None
        self._http.drain(timeout_s)
        if grpc_end:
            grpc_end.wait()
        self.close()
        if self._log:
            self._log.close()

    def close(self) -> None:
        """Give up all requests, and free the ports."""
        if self._grpc:
            self._grpc.close()
        self._http.close()
