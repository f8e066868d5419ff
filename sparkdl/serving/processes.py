"""Runs on the driver. Start a model server whose arguments were checked: here, or with workers."""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdl.host.tensorflow_noise import without_noise
from sparkdl.serving.choice import Choice
from sparkdl.serving.inference_log import log_of
from sparkdl.serving.loaded_version import load
from sparkdl.serving.model_set import ModelSet
from sparkdl.serving.served_model import ServedModel
from sparkdl.serving.server import Server
from sparkdl.serving.settings import Settings
from sparkdl.serving.sockets import SharedPort, address_of, listen
from sparkdl.serving.version_source import VersionSource

if TYPE_CHECKING:
    from sparkdl.serving.grpc_server import GrpcServer
    from sparkdl.serving.workers import Workers


@dataclass(frozen=True)
class Place:
    """The addresses of a server.

    Attributes:
        host: the host.
        port: the port of HTTP; 0 takes a free one.
        grpc_port: the port of gRPC; None for HTTP only.
    """

    host: str
    port: int
    grpc_port: int | None


def start_alone(
    place: Place,
    settings: Settings,
    sources: Sequence[VersionSource],
    choice: Choice,
    memory_bytes: int | None,
) -> Server:
    """Serve models in threads of this process.

    Args:
        place: the addresses.
        settings: the settings.
        sources: the models.
        choice: the versions that the user wants to serve.
        memory_bytes: see `ModelSet`.

    Raises:
        ConfigError: if an address cannot be used, or the log cannot be written.
        ModelDamagedError: if no version of a model can be loaded.
    """
    from sparkdl.serving.local_server import LocalServer
    from sparkdl.serving.metrics import Metrics

    # Everything that was started ends if a later step fails.
    with contextlib.ExitStack() as stack:
        bound = stack.enter_context(listen(place.host, place.port))
        grpc = _grpc(place, settings, stack)
        local = LocalServer(bound, grpc, settings)
        stack.callback(local.close)
        loader = functools.partial(
            load,
            batching=settings.batching,
            # The connections of gRPC carry several requests at a time.
            num_clients=None if grpc else lambda: local.num_connections,
            timeout_s=settings.timeout_s,
        )
        sizes = settings.warm_up_sizes
        models = ModelSet([ServedModel(s, choice, loader, sizes) for s in sources], memory_bytes)
        stack.callback(models.close)
        with without_noise():
            models.start()
        log = log_of(settings.log)
        if log:
            stack.callback(log.close)
        metrics = Metrics(
            models.loaded, lambda: local.num_open, lambda: log.num_dropped if log else 0
        )
        local.start(models, metrics, log)
        server = Server(
            bound.getsockname()[:2],
            models.names,
            token=settings.token,
            grpc_address=grpc.address if grpc else None,
            stop=functools.partial(_stop, models, local.drain),
        )
        stack.pop_all()
    return server


def start_workers(
    num_workers: int,
    place: Place,
    settings: Settings,
    sources: Sequence[VersionSource],
    choice: Choice,
    memory_bytes: int | None,
) -> Server:
    """Serve models in several processes, see `start_alone`.

    Raises:
        ConfigError: if an address cannot be used, or the log cannot be written.
        ModelDamagedError: if no version of a model can be loaded.
        SparkDLError: if a worker ends.
    """
    from sparkdl.serving.worker import WorkerStart
    from sparkdl.serving.workers import Workers

    with contextlib.ExitStack() as stack:
        http = SharedPort(place.host, place.port)
        stack.callback(http.close)
        grpc = None if place.grpc_port is None else SharedPort(place.host, place.grpc_port)
        if grpc:
            stack.callback(grpc.close)
        start = WorkerStart(
            settings=settings,
            names=[source.name for source in sources],
            loads_on_demand=memory_bytes is not None,
            has_grpc=grpc is not None,
        )
        workers = Workers(num_workers, start)
        stack.callback(workers.stop, 0.0)
        sizes = settings.warm_up_sizes
        served = [ServedModel(s, choice, workers.load, sizes, workers.show) for s in sources]
        models = ModelSet(served, memory_bytes, workers.use_times)
        stack.callback(models.close)
        workers.start(models)
        models.start()
        workers.listen(place.host, http.port, grpc.port if grpc else None)
        http.share()
        if grpc:
            grpc.share()
        drain = functools.partial(_drain_workers, workers, [http, grpc] if grpc else [http])
        server = Server(
            http.address,
            models.names,
            token=settings.token,
            grpc_address=address_of(place.host, grpc.port) if grpc else None,
            stop=functools.partial(_stop, models, drain),
        )
        stack.pop_all()
    return server


def _grpc(place: Place, settings: Settings, stack: contextlib.ExitStack) -> "GrpcServer | None":
    if place.grpc_port is None:
        return None
    from sparkdl.serving.grpc_server import GrpcServer

    grpc = GrpcServer(place.host, place.grpc_port, settings.max_bytes)
    stack.callback(grpc.close)
    return grpc


def _drain_workers(workers: "Workers", ports: Sequence[SharedPort], timeout_s: float) -> None:
    workers.stop(timeout_s)
    for port in ports:
        port.close()


def _stop(models: ModelSet, drain: Callable[[float], None], timeout_s: float) -> None:
    """Answer all requests that have come, free the ports, and unload the models."""
    models.stop()
    deadline = time.monotonic() + timeout_s
    drain(timeout_s)
    models.close(max(0.0, deadline - time.monotonic()))
