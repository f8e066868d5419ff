"""Runs on the driver. `sparkdl serve MODEL`: serve models here, or let KServe do it."""

import argparse
import contextlib
import functools
import logging
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.serving import Batching, Log, kserve, start

# Options of the other server, which runs here; KServe decides what they say.
_LOCAL = """
    host port grpc_port token_file log_sample batch_timeout_ms max_body_mb timeout_s memory_limit_mb
""".split()
# Options of kserve that the server in this process does not have.
_REMOTE = (
    "output min_replicas max_replicas scale_on mode cpu memory gpus image token_secret".split()
)


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `sparkdl serve`."""
    parser.description = (
        "Serve models over HTTP, with TensorFlow Serving's REST API and the Open "
        "Inference Protocol v2, until SIGTERM or Ctrl-C; requests that have come are answered. "
        "With --kserve, write what a Kubernetes cluster needs to serve the model."
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="name of a model of the registry, or the path of a .keras file, of a SavedModel or of "
        "a folder with numbered SavedModels",
    )
    parser.add_argument(
        "--root", help="folder of runs and models; default: $SPARKDL_ROOT, otherwise ./runs"
    )
    parser.add_argument("--model-version", type=int, help="a version; default: the newest one")
    parser.add_argument("--alias", help="serve the version that an alias names")
    parser.add_argument(
        "--weight",
        metavar="VERSION=PERCENT",
        action="append",
        default=[],
        type=_weight,
        help="send a share of the requests to another version or alias; may be repeated",
    )
    _add_addresses(parser)
    parser.add_argument(
        "--log", help="folder, URL or kafka://host:9092/topic for a record of each request"
    )
    parser.add_argument(
        "--log-sample", type=float, default=1.0, help="share of the requests; default: %(default)s"
    )
    _add_limits(parser)
    _add_kserve(parser)
    parser.set_defaults(run=functools.partial(_run, parser=parser))


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8501, help="0 takes a free one; default: 8501")
    parser.add_argument(
        "--grpc-port", type=int, help="port of the gRPC API, usually 8500; default: no gRPC"
    )
    parser.add_argument(
        "--token-file", help="file with the secret that requests need; by default one is made"
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batching", action="store_true", help="compute rows of several requests at once"
    )
    parser.add_argument("--max-batch-size", type=int, help="rows at once, with --batching")
    parser.add_argument(
        "--batch-timeout-ms", type=float, help="milliseconds that rows wait for others"
    )
    parser.add_argument("--max-body-mb", type=float, default=64, help="default: %(default)s")
    parser.add_argument(
        "--timeout-s", type=float, help="the most seconds that a request takes; default: no limit"
    )
    parser.add_argument(
        "--memory-limit-mb",
        type=float,
        help="load models at their first request, and unload others beyond this size",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="processes that answer on the same port, each with the models; default: %(default)s",
    )


def _weight(text: str) -> tuple[int | str, float]:
    name, _, percent = text.rpartition("=")
    return int(name) if name.isdecimal() else name, float(percent)


def _batching(arguments: argparse.Namespace) -> Any:
    options = {
        "max_batch_size": arguments.max_batch_size,
        "timeout_ms": arguments.batch_timeout_ms,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if given and not arguments.batching:
        raise ConfigError("an option of batching is given without --batching.")
    return given or arguments.batching


def _run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    _check_kserve(arguments, parser)
    batching = _batching(arguments)
    return _write_kserve(arguments) if arguments.kserve else _serve(arguments, batching)


def _serve(arguments: argparse.Namespace, batching: Any) -> int:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("sparkdl").setLevel(logging.INFO)
    token = None
    if arguments.token_file:
        token = storage.read(arguments.token_file).decode(errors="replace").strip()
    is_ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_ended.set())
    with (
        contextlib.ExitStack() as folder,
        start(
            arguments.models if len(arguments.models) > 1 else arguments.models[0],
            version=arguments.model_version,
            alias=arguments.alias,
            weights=dict(arguments.weight),
            host=arguments.host,
            port=arguments.port,
            grpc_port=arguments.grpc_port,
            log=Log(arguments.log, sample=arguments.log_sample) if arguments.log else None,
            token=token,
            batching=batching,
            max_body_mb=arguments.max_body_mb,
            timeout_s=arguments.timeout_s,
            memory_limit_mb=arguments.memory_limit_mb,
            workers=arguments.workers,
            root=arguments.root,
        ) as server,
    ):
        print(f"{', '.join(server.models)} is served at {server.url}")
        if server.grpc_address:
            print(f"TensorFlow Serving's gRPC API is at {server.grpc_address}")
        if server.token and not arguments.token_file:
            path = folder.enter_context(_file_of(server.token))
            print(f"Requests need the header Authorization: Bearer TOKEN. The token is in {path}")
        sys.stdout.flush()
        # A signal interrupts a wait with a time limit only.
        while not is_ended.wait(1.0):
            pass
    return 0


@contextlib.contextmanager
def _file_of(token: str) -> Iterator[str]:
    """Write the token into a file that other users cannot read, as what is printed may be logged.

    Yields:
        The path of the file, which is removed at the end.
    """
    with tempfile.TemporaryDirectory(prefix="sparkdl-serving-") as folder:
        path = storage.join(folder, "token")
        storage.write(path, token)
        yield path


def _add_kserve(parser: argparse.ArgumentParser) -> None:
    """Add the options for a server on Kubernetes."""
    group = parser.add_argument_group(
        "Kubernetes",
        "With --kserve, nothing is served here: the InferenceService of the model is written, "
        "which a cluster with KServe takes. The options above that also hold there are --root, "
        "--model-version, --alias, --weight, --batching, --max-batch-size, --log with the URL that "
        "gets each request and answer, and --workers for a model with a loader.",
    )
    group.add_argument(
        "--kserve", action="store_true", help="write the InferenceService of KServe as YAML"
    )
    group.add_argument("--output", metavar="FILE", help="path or URL; default: standard output")
    group.add_argument("--min-replicas", type=int, help="default: 1; 0 needs --mode Knative")
    group.add_argument("--max-replicas", type=int, help="default: 1")
    group.add_argument("--scale-on", help="cpu or memory; in the mode Knative concurrency or rps")
    group.add_argument("--mode", help="Standard or Knative; default: Standard")
    group.add_argument("--cpu", help="cores of a server; default: 1")
    group.add_argument("--memory", help="memory of a server; default: 2Gi")
    group.add_argument("--gpus", type=int, help="GPUs of a server; default: 0")
    group.add_argument("--image", help="image of the container of a model with a loader")
    group.add_argument("--token-secret", help="secret of Kubernetes with its key 'token'")


def _check_kserve(arguments: argparse.Namespace, defaults: argparse.ArgumentParser) -> None:
    """Validate that each option that is given has a meaning, with or without `--kserve`.

    Args:
        arguments: the parsed options.
        defaults: the parser, which knows the defaults.

    Raises:
        ConfigError: if an option has none.
    """
    reason = "with --kserve, nothing is served here" if arguments.kserve else "it needs --kserve"
    without = _LOCAL if arguments.kserve else _REMOTE
    given = [n for n in without if getattr(arguments, n) != defaults.get_default(n)]
    if given:
        raise ConfigError(f"--{given[0].replace('_', '-')} is given, but {reason}.")
    if arguments.kserve and len(arguments.models) > 1:
        raise ConfigError(f"--kserve got {len(arguments.models)} models; expected one.")


def _write_kserve(arguments: argparse.Namespace) -> int:
    """Write the InferenceService to a file or to standard output; return the exit code."""
    if arguments.alias is not None and arguments.model_version is not None:
        raise ConfigError("--model-version and --alias are given; expected one of them.")
    options = {name: getattr(arguments, name) for name in _REMOTE[1:]}
    canary = {k: int(p) if p == int(p) else p for k, p in arguments.weight}
    batch = arguments.max_batch_size
    text = kserve(
        arguments.models[0],
        version=arguments.model_version if arguments.alias is None else arguments.alias,
        canary=canary or None,
        batch=Batching().max_batch_size if arguments.batching and batch is None else batch,
        log_to=arguments.log,
        workers=arguments.workers,
        root=arguments.root,
        **{name: value for name, value in options.items() if value is not None},
    )
    if arguments.output:
        storage.write(arguments.output, text)
    else:
        print(text, end="")
    return 0
