"""Runs on the driver. Start a model server: check the arguments, load the models, listen."""

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import ConfigError, ModelNotFoundError
from sparkdl.loopback import is_loopback
from sparkdl.serving.batching import Batching, batching_of
from sparkdl.serving.choice import Choice
from sparkdl.serving.inference_log import InferenceLog, check_log, log_of
from sparkdl.serving.loaded_version import load
from sparkdl.serving.model_set import ModelSet
from sparkdl.serving.served_model import ServedModel
from sparkdl.serving.server import Server
from sparkdl.serving.version_source import VersionSource, source_of
from sparkdl.tensorflow_noise import without_noise

__all__ = ["start"]

MIN_TOKEN = 16

_logger = logging.getLogger("sparkdl.serving")


def start(
    name_or_path: Any,
    *,
    version: int | None = None,
    alias: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8501,
    grpc_port: int | None = None,
    batching: Any = None,
    weights: Mapping[int | str, float] | None = None,
    log: Any = None,
    token: str | None = None,
    max_body_mb: float = 64,
    memory_limit_mb: float | None = None,
    root: str | None = None,
) -> Server:
    """Serve models over HTTP, in threads of this process.

    The server speaks TensorFlow Serving's REST API and the Open Inference Protocol v2, and with
    `grpc_port=` TensorFlow Serving's gRPC API. New versions of a model are noticed, loaded and
    warmed up before they take requests. TensorFlow is imported into this process.

    Args:
        name_or_path: the name of a model of the registry; the path or URL of a Keras file, of a
            SavedModel, or of a folder with numbered SavedModels; or a list of names and paths.
        version: the number of the version; by default the newest version.
        alias: an alias, such as `stable`: its version is served, wherever the alias moves.
        host: the address on which the server listens. Other addresses than those of the loopback
            interface need a token.
        port: the port; 0 takes a free one.
        grpc_port: the port of TensorFlow Serving's gRPC API, usually 8500; 0 takes a free one, and
            None serves HTTP only. It needs the packages of `sparkdl[serving-grpc]`.
        batching: True to compute the rows of several requests at once, or a dict with some of
            `max_batch_size` (32 rows), `timeout_ms` (1.0), `max_enqueued_batches` (100),
            `allowed_batch_sizes` and `num_threads` (1). The rows of a model must not influence each
            other.
        weights: percent of the requests for other versions, by number or alias, such as
            `{"canary": 10}`.
        log: the path or URL of a folder for a record of each request, or `serving.Log` for more
            options.
        token: the secret that requests need, of at least 16 characters; None makes one if `host`
            needs it.
        max_body_mb: the size of the largest request, in megabytes.
        memory_limit_mb: load each model at its first request, and unload those that were not asked
            for the longest while the files of all loaded models have more megabytes; None loads
            all models at the start.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Returns:
        The server, a context manager with `url`, `grpc_address`, `token` and `stop()`.

    Raises:
        ConfigError: if an argument is wrong, or packages are missing.
        ModelNotFoundError: if there is no such model or version.
        ModelDamagedError: if no version of a model can be loaded.

    Example:
        >>> from sparkdl import serving
        >>> serving.start("digits", port=0)
        Traceback (most recent call last):
        sparkdl.errors.ModelNotFoundError: there is no model 'digits' in ...
    """
    modules = _packages(grpc_port is not None)
    options = batching_of(batching)
    given = [*name_or_path] if isinstance(name_or_path, list | tuple) else [name_or_path]
    choice = Choice(version=version, alias=alias, weights=dict(_mapping(weights)))
    if not given:
        raise ConfigError("name_or_path is an empty list; expected at least one model.")
    if len(given) != 1 and choice != Choice():
        raise ConfigError(
            f"version, alias or weights is given for {len(given)} models; expected one model."
        )
    secret = _token(host, token)
    check_log(log)
    limits = [_bytes(max_body_mb, "max_body_mb"), _bytes(memory_limit_mb, "memory_limit_mb")]
    sources = [source_of(model, root) for model in given]
    for source in sources:
        _check_exists(source, choice)
    running: list[Any] = []
    # The connections of gRPC carry several requests at a time.
    num_clients = None if grpc_port is not None else functools.partial(_num_clients, running)
    served = _served(sources, choice, options, num_clients)
    # Everything that was started ends if a later step fails.
    with contextlib.ExitStack() as stack:
        sockets = _listen(modules, (host, port, grpc_port), limits[0], stack)
        models = ModelSet(served, limits[1])
        stack.callback(models.close)
        with without_noise():
            models.start()
        parts = _Parts(
            modules=modules,
            models=models,
            sockets=sockets,
            token=secret,
            max_body_bytes=limits[0] or 0,
            log=_start_log(log, stack),
            running=running,
        )
        server = _server(parts, stack)
        stack.pop_all()
    return server


def _listen(
    modules: Mapping[str, Any],
    address: tuple[str, int, int | None],
    max_bytes: int | None,
    stack: contextlib.ExitStack,
) -> tuple[Any, Any]:
    """Take the ports; return the socket of HTTP, and the server of gRPC if there is one."""
    host, port, grpc_port = address
    bound = stack.enter_context(modules["http_server"].listen(host, port))
    if grpc_port is None:
        return bound, None
    grpc = modules["grpc_server"].GrpcServer(host, grpc_port, max_bytes)
    stack.callback(grpc.close)
    return bound, grpc


def _start_log(log: Any, stack: contextlib.ExitStack) -> InferenceLog | None:
    started = log_of(log)
    if started:
        stack.callback(started.close)
    return started


def _packages(has_grpc: bool) -> dict[str, Any]:
    """Return the modules that need more than sparkdl does."""
    modules: dict[str, Any] = {}
    extra, names = "serving", ["application", "http_server", "metrics"]
    try:
        for name in names:
            modules[name] = importlib.import_module(f"sparkdl.serving.{name}")
        if has_grpc:
            extra = "serving-grpc"
            for name in ("grpc_server", "grpc_services"):
                modules[name] = importlib.import_module(f"sparkdl.serving.{name}")
            if importlib.util.find_spec("tensorflow_serving") is None:
                raise ImportError("No module named 'tensorflow_serving'")
    except ImportError as exc:
        raise ConfigError(
            f"the model server needs packages that are not installed ({exc}): pip install "
            f"'sparkdl[{extra}]'."
        ) from exc
    return modules


def _mapping(weights: Any) -> Mapping[Any, Any]:
    if weights is not None and not isinstance(weights, Mapping):
        raise ConfigError(f"weights is {weights!r}; expected a dict, such as {{4: 10}}.")
    return weights or {}


def _bytes(megabytes: Any, name: str) -> int | None:
    if megabytes is None:
        return None
    if isinstance(megabytes, bool) or not isinstance(megabytes, int | float) or not megabytes > 0:
        raise ConfigError(f"{name} is {megabytes!r}; expected megabytes, more than 0.")
    return int(megabytes * (1 << 20))


def _token(host: str, token: str | None) -> str | None:
    """Return the secret that requests need; None if only this host can send requests."""
    if token is not None:
        is_text = isinstance(token, str) and token.isascii() and token.isprintable()
        if not is_text or len(token) < MIN_TOKEN or " " in token:
            raise ConfigError(
                f"the token is not made of at least {MIN_TOKEN} ASCII characters without spaces. "
                "Make one with python -c 'import secrets; print(secrets.token_urlsafe())'."
            )
        return token
    return None if is_loopback(host) else secrets.token_urlsafe(24)


def _check_exists(source: VersionSource, choice: Choice) -> None:
    listing = source.look()
    if missing := choice.missing(listing):
        raise ModelNotFoundError(
            f"the model {source.name} has no version or alias {missing[0]!r}; it has the versions "
            f"{', '.join(map(str, listing.urls))} and the aliases "
            f"{', '.join(sorted(listing.labels)) or 'none'}."
        )


def _num_clients(running: list[Any]) -> int:
    """Return the number of connections to the HTTP server, which may not run yet."""
    return running[0].num_connections if running else 0


def _served(
    sources: list[VersionSource],
    choice: Choice,
    options: Batching | None,
    num_clients: Callable[[], int] | None,
) -> list[ServedModel]:
    sizes = {1, *((options.allowed_batch_sizes or (options.max_batch_size,)) if options else ())}
    loader = functools.partial(load, batching=options, num_clients=num_clients)
    return [ServedModel(source, choice, loader, tuple(sorted(sizes))) for source in sources]


@dataclass(kw_only=True)
class _Parts:
    """The parts that a server is made of.

    Attributes:
        modules: the modules that need more packages, by name.
        models: the models, which are loaded.
        sockets: the socket of HTTP and the server of gRPC; None for no gRPC.
        token: the secret that requests need; None if they need none.
        max_body_bytes: the size of the largest request.
        log: the inference log; None for no log.
        running: gets the HTTP server when it runs.
    """

    modules: Mapping[str, Any]
    models: ModelSet
    sockets: tuple[Any, Any]
    token: str | None
    max_body_bytes: int
    log: InferenceLog | None
    running: list[Any]


def _server(parts: _Parts, stack: contextlib.ExitStack) -> Server:
    """Answer requests from now on."""
    modules, models, log, running = parts.modules, parts.models, parts.log, parts.running
    bound, grpc = parts.sockets
    metrics = modules["metrics"].Metrics(
        models.loaded,
        lambda: running[0].num_open if running else 0,
        lambda: log.num_dropped if log else 0,
    )
    observers = [metrics.observe, *([log.observe] if log else [])]
    application = modules["application"].Application(
        models,
        token=parts.token,
        observers=observers,
        metrics=metrics.page,
        max_body_bytes=parts.max_body_bytes,
    )
    address = bound.getsockname()[:2]
    http = modules["http_server"].HttpServer(application.answer_soon, bound, parts.max_body_bytes)
    stack.callback(http.close)
    running.append(http)
    if grpc:
        services = modules["grpc_services"].GrpcServices(
            models, token=parts.token, observers=observers, max_bytes=parts.max_body_bytes
        )
        grpc.start(services.handlers())
    server = Server(
        http,
        models,
        address,
        token=parts.token,
        grpc=grpc,
        on_drain=application.drain,
        on_stop=log.close if log else lambda: None,
    )
    _logger.info("%r in process %d", server, os.getpid())
    return server
