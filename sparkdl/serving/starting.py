"""Runs on the driver. Start a model server: check the arguments, load the models, listen."""

import logging
import os
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from sparkdl.errors import ConfigError, ModelNotFoundError
from sparkdl.files import storage
from sparkdl.files.model_formats import LOADER_FILE
from sparkdl.host.loopback import is_loopback
from sparkdl.host.optional_packages import require
from sparkdl.host.supported_versions import check_versions
from sparkdl.options import check_count
from sparkdl.serving.batching import batching_of
from sparkdl.serving.choice import Choice
from sparkdl.serving.inference_log import check_log
from sparkdl.serving.processes import Place, start_alone, start_workers
from sparkdl.serving.server import Server
from sparkdl.serving.settings import Settings
from sparkdl.serving.version_source import Listing, VersionSource, source_of

MIN_TOKEN = 16
# Threads and loops of events cannot wait for longer on all hosts.
MAX_TIMEOUT_S = 1e6

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
    timeout_s: float | None = None,
    memory_limit_mb: float | None = None,
    workers: int = 1,
    root: str | None = None,
) -> Server:
    """Serve models over HTTP, in threads of this process or in several processes.

    The server speaks TensorFlow Serving's REST API and the Open Inference Protocol v2, and with
    `grpc_port=` TensorFlow Serving's gRPC API. New versions of a model are noticed, loaded and
    warmed up before they take requests. TensorFlow is imported into this process for Keras models
    and SavedModels; a model with a loader computes in a process of its own, see `models.export`.

    Args:
        name_or_path: the name of a model of the registry; the path or URL of a Keras file, of a
            SavedModel, or of a folder with numbered models; or a list of names and paths.
        version: the number of the version; by default the newest version.
        alias: an alias, such as `stable`: its version is served, wherever the alias moves.
        host: the address on which the server listens. Other addresses than those of the loopback
            interface need a token.
        port: the port; 0 takes a free one.
        grpc_port: the port of TensorFlow Serving's gRPC API, usually 8500; 0 takes a free one, and
            None serves HTTP only. It needs the packages of `sparkdl-platform[serving-grpc]`.
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
        timeout_s: the most seconds that a request may take, after which it is answered with 504 or
            `DEADLINE_EXCEEDED`; a client may ask for less. None sets no limit.
        memory_limit_mb: load each model at its first request, and unload those that were not asked
            for the longest while the files of all loaded models have more megabytes; None loads
            all models at the start.
        workers: number of processes that answer on the same port, each with the models in memory.
            With 1, this process answers. A worker that ends is started again.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Returns:
        The server, a context manager with `url`, `grpc_address`, `token` and `stop()`.

    Raises:
        ConfigError: if an argument is wrong, or packages are missing or too old.
        ModelNotFoundError: if there is no such model or version.
        ModelDamagedError: if no version of a model can be loaded.
        SparkDLError: if a worker ends while it starts.

    Example:
        >>> from sparkdl import serving
        >>> serving.start("digits", port=0)
        Traceback (most recent call last):
        sparkdl.errors.ModelNotFoundError: there is no model 'digits' in ...
    """
    _check_packages(grpc_port is not None)
    models = [*name_or_path] if isinstance(name_or_path, list | tuple) else [name_or_path]
    choice = Choice(version=version, alias=alias, weights=dict(_mapping(weights)))
    if not models:
        raise ConfigError("name_or_path is an empty list; expected at least one model.")
    if len(models) != 1 and choice != Choice():
        raise ConfigError(
            f"version, alias or weights is given for {len(models)} models; expected one model."
        )
    check_log(log)
    _check_timeout(timeout_s)
    _check_workers(workers)
    settings = Settings(
        batching=batching_of(batching),
        log=log,
        token=_token(host, token),
        max_bytes=_bytes(max_body_mb, "max_body_mb") or 0,
        timeout_s=timeout_s,
    )
    memory_bytes = _bytes(memory_limit_mb, "memory_limit_mb")
    sources = [source_of(model, root) for model in models]
    for source in sources:
        listing = source.look()
        _check_exists(source, listing, choice)
        _check_framework(listing)
    place = Place(host, port, grpc_port)
    if workers == 1:
        server = start_alone(place, settings, sources, choice, memory_bytes)
    else:
        server = start_workers(workers, place, settings, sources, choice, memory_bytes)
    _logger.info("%r in process %d", server, os.getpid())
    return server


def _check_packages(has_grpc: bool) -> None:
    """Validate that the packages of the servers are installed, in supported versions."""
    for package in ("h11", "prometheus_client", "uvicorn", "uvloop"):
        require(package, "the model server")
    for package in ("grpc", "tensorflow_serving") if has_grpc else ():
        require(package, "grpc_port=")


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


def _check_timeout(timeout_s: Any) -> None:
    if timeout_s is None:
        return
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ConfigError(f"timeout_s is {timeout_s!r}; expected seconds, more than 0.")


def _check_workers(workers: Any) -> None:
    check_count("workers", workers)
    if workers > 1 and not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError(f"workers is {workers}, but this system has no SO_REUSEPORT; expected 1.")


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


def _check_exists(source: VersionSource, listing: Listing, choice: Choice) -> None:
    if missing := choice.missing(listing):
        raise ModelNotFoundError(
            f"the model {source.name} has no version or alias {missing[0]!r}; it has the versions "
            f"{', '.join(map(str, listing.urls))} and the aliases "
            f"{', '.join(sorted(listing.labels)) or 'none'}."
        )


def _check_framework(listing: Listing) -> None:
    """Validate that TensorFlow is here for a model that needs it."""
    newest = [*listing.urls.values()][-1:]
    if not any(storage.exists(storage.join(url, LOADER_FILE)) for url in newest):
        require("tensorflow", "the model server")
        check_versions("tensorflow", "keras")
