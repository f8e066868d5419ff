"""Runs on the driver. `sparkdl serve MODEL --kserve`: write the InferenceService of a model."""

import argparse
from typing import Any

from sparkdl import storage
from sparkdl.errors import ConfigError
from sparkdl.serving import Batching, kserve

__all__ = ["add_options", "check_options", "write"]

# Options of the other server, which runs here; KServe decides what they say.
LOCAL = (
    *("host", "port", "grpc_port", "token_file", "log_sample", "batch_timeout_ms", "max_body_mb"),
    "memory_limit_mb",
)
# Options of kserve that the server in this process does not have.
REMOTE = (*("output", "min_replicas", "max_replicas", "scale_on", "mode", "cpu", "memory", "gpus"),)


def add_options(parser: Any) -> None:
    """Add the options to the parser of the verb."""
    group = parser.add_argument_group(
        "Kubernetes",
        "With --kserve, nothing is served here: the InferenceService of the model is written, "
        "which a cluster with KServe takes. The options above that also hold there are --root, "
        "--model-version, --alias, --weight, --batching, --max-batch-size, and --log with the URL "
        "that gets each request and answer.",
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


def check_options(arguments: argparse.Namespace, defaults: argparse.ArgumentParser) -> None:
    """Validate that each option that is given has a meaning, with or without `--kserve`.

    Args:
        arguments: the parsed options.
        defaults: the parser, which knows the defaults.

    Raises:
        ConfigError: if an option has none.
    """
    reason = "with --kserve, nothing is served here" if arguments.kserve else "it needs --kserve"
    without: tuple[str, ...] = LOCAL if arguments.kserve else REMOTE
    given = [n for n in without if getattr(arguments, n) != defaults.get_default(n)]
    if given:
        raise ConfigError(f"--{given[0].replace('_', '-')} is given, but {reason}.")
    if arguments.kserve and len(arguments.models) > 1:
        raise ConfigError(f"--kserve got {len(arguments.models)} models; expected one.")


def write(arguments: argparse.Namespace) -> int:
    """Write the InferenceService to a file or to standard output; return the exit code."""
    if arguments.alias is not None and arguments.model_version is not None:
        raise ConfigError("--model-version and --alias are given; expected one of them.")
    options = {name: getattr(arguments, name) for name in REMOTE[1:]}
    canary = {k: int(p) if p == int(p) else p for k, p in arguments.weight}
    batch = arguments.max_batch_size
    text = kserve(
        arguments.models[0],
        version=arguments.model_version if arguments.alias is None else arguments.alias,
        canary=canary or None,
        batch=Batching().max_batch_size if arguments.batching and batch is None else batch,
        log_to=arguments.log,
        root=arguments.root,
        **{name: value for name, value in options.items() if value is not None},
    )
    if arguments.output:
        storage.write(arguments.output, text)
    else:
        print(text, end="")
    return 0
