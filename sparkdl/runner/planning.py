"""Runs on the driver. The plan of a request, and what its trials begin with."""

from collections.abc import Callable

from sparkdl import checkpoints, config
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.program.packaging import Program, find_framework
from sparkdl.cluster.spark import Cluster
from sparkdl.errors import ConfigError, PreflightError
from sparkdl.runner.request import Request

__all__ = ["check_elastic", "initial_of", "plan_of", "stays_in_memory"]

# A function that is larger reaches Spark's executors as a file; with it go some names and numbers.
MOST_BYTES = (1 << 20) - (1 << 14)


def plan_of(request: Request, program: Program, cluster: Cluster) -> Plan:
    """Who will run where with what."""
    options, roles = request.options, request.roles
    served = any(role.runs_server for role in roles)
    found = "tensorflow" if served else find_framework(program.imports)
    detect_gpus = request.detect_gpus
    if detect_gpus is None:
        detect_gpus = config.resolve("detect_gpus", None, cluster.conf)
    return Plan(
        kind=request.kind,
        roles=roles,
        # Rows reach a program as a tf.data.Dataset.
        framework=options.framework
        or found
        or ("tensorflow" if request.data is not None else None),
        env=dict(options.env),
        detect_gpus=detect_gpus,
        fork_server=config.resolve("fork_server", None, cluster.conf),
        trial_timeout_s=options.trial_timeout_s,
        is_gang=request.is_gang,
        start_timeout_s=config.resolve("start_timeout_s", None, cluster.conf),
        collective_timeout_s=config.resolve("collective_timeout_s", None, cluster.conf),
        interface=config.resolve("interface", None, cluster.conf),
        elastic=request.elastic,
        timeline=request.timeline,
        meets_by_files=request.meets_by_files or request.elastic,
        ends_by_order=request.ends_by_order,
        repeatable=request.is_resumable,
    )


def check_elastic(program: Program, conf: Callable[[str], str | None]) -> None:
    """See that Spark holds what it is given in memory: the secret of the ring is in it.

    Raises:
        PreflightError: it would write it to a file (`spark.broadcast.UDFCompressionThreshold`).
    """
    if not stays_in_memory(program, conf):
        raise PreflightError(
            f"the function and its modules have {_size(program)} bytes, and Spark hands on more "
            f"than {MOST_BYTES} as a file, with the secret by which the ranks of an elastic gang "
            "know each other. Let the function read its large objects itself, or start Spark with "
            "spark.io.encryption.enabled=true."
        )


def stays_in_memory(program: Program, conf: Callable[[str], str | None]) -> bool:
    """Whether Spark hands a program on without writing it to a file that others may read."""
    return _size(program) <= MOST_BYTES or conf("spark.io.encryption.enabled") == "true"


def _size(program: Program) -> int:
    texts = (source.text.encode() for source in program.modules.values())
    return len(program.function) + sum(map(len, texts))


def initial_of(request: Request) -> tuple[str, int] | None:
    """The folder of the trial, and the number of its checkpoint, that trials begin with."""
    path = request.initial
    if path is None:
        return None
    folder = path.split(f"/{checkpoints.FOLDER}/")[0]
    found = [c for c in checkpoints.committed(folder) if folder == path or c.url == path]
    if not found:
        raise ConfigError(
            f"init_from is {path}, and there is no checkpoint in it. Expected a trial that has "
            "committed one by context.report(..., checkpoint=), its folder, or trial.checkpoint."
        )
    return folder, found[-1].number
