"""Runs on the driver. Train in several processes, under the names of hops-util-py."""

from collections.abc import Callable, Sequence
from typing import Any

from sparkdl import experiment
from sparkdl.errors import ConfigError
from sparkdl.hops import util
from sparkdl.hops.arguments import NO_NAME, options_of, verb
from sparkdl.hops.results import Result, result_of

__all__ = ["collective_all_reduce", "mirrored", "multi_worker_mirrored", "parameter_server"]


@verb(map_fun="train_fn")
def mirrored(
    train_fn: Callable[[], Any],
    name: str = NO_NAME,
    local_logdir: bool = False,
    description: str | None = None,
    evaluator: bool = False,
    metric_key: str | None = None,
    versioned_resources: Sequence[str] | None = None,
) -> Result:
    """Run a training function on all executors, or with all GPUs of a single executor.

    With one executor, the function trains in one process, such as with a `MirroredStrategy`. With
    several, each executor runs a worker, and `TF_CONFIG` is set for a
    `MultiWorkerMirroredStrategy`. See `util.num_executors`.

    Args:
        train_fn: a function without parameters.
        name, local_logdir, versioned_resources, description, metric_key: see `launch`.
        evaluator: one of the executors, which are at least three, evaluates.

    Returns:
        The run directory, and the values that the chief returned.

    Raises:
        sparkdl.errors.SparkDLError: see `sparkdl.experiment.allreduce`.
    """
    options = options_of(name, versioned_resources, description, metric_key)
    num_executors = util.num_executors()
    if num_executors == 1 and not evaluator:
        return result_of(experiment.mirrored(train_fn, **options))
    return _run_workers(train_fn, num_executors, evaluator, options)


@verb(map_fun="train_fn")
def multi_worker_mirrored(
    train_fn: Callable[[], Any],
    name: str = NO_NAME,
    local_logdir: bool = False,
    description: str | None = None,
    evaluator: bool = False,
    metric_key: str | None = None,
    versioned_resources: Sequence[str] | None = None,
) -> Result:
    """Run a training function in several workers, with `TF_CONFIG` set.

    The number of workers is the number of executors; if there is only one, its number of slots.

    Args:
        train_fn, name, local_logdir: see `mirrored`.
        versioned_resources, description, evaluator, metric_key: see `mirrored`.

    Returns:
        The run directory, and the values that the chief returned.

    Raises:
        ConfigError: if there is one executor with one slot.
        sparkdl.errors.SparkDLError: see `sparkdl.experiment.allreduce`.
    """
    options = options_of(name, versioned_resources, description, metric_key)
    num_executors = util.num_executors()
    num_processes = num_executors if num_executors > 1 else util.num_slots(waits=True)
    if num_processes < 2:
        raise ConfigError(
            "Spark has one executor with one slot; expected at least two workers. Start Spark with "
            "spark.executor.instances=2 or with more cores, or call experiment.mirrored."
        )
    return _run_workers(train_fn, num_processes, evaluator, options)


def collective_all_reduce(
    map_fun: Callable[[], Any],
    name: str = NO_NAME,
    local_logdir: bool = False,
    versioned_resources: Sequence[str] | None = None,
    description: str | None = None,
) -> Result:
    """Run a training function in several workers, see `multi_worker_mirrored`."""
    return multi_worker_mirrored(
        map_fun,
        name,
        local_logdir,
        description=description,
        versioned_resources=versioned_resources,
    )


def _run_workers(
    train_fn: Callable[[], Any], num_processes: int, evaluator: bool, options: dict[str, Any]
) -> Result:
    if evaluator and num_processes < 3:
        raise ConfigError(
            f"evaluator is True with {num_processes} executors; expected at least 3: two workers "
            "and the evaluator. Start Spark with more executors, or remove evaluator=True."
        )
    num_workers = num_processes - int(evaluator)
    return result_of(
        experiment.allreduce(train_fn, num_workers=num_workers, evaluator=evaluator, **options)
    )


@verb(map_fun="train_fn")
def parameter_server(
    train_fn: Callable[[], Any],
    name: str = NO_NAME,
    local_logdir: bool = False,
    description: str | None = None,
    evaluator: bool = False,
    metric_key: str | None = None,
    versioned_resources: Sequence[str] | None = None,
) -> Result:
    """Run a training function in a chief, workers and parameter servers; each calls the function.

    The environment variable `NUM_TF_PS` is the number of parameter servers. All other executors are
    the chief and the workers.

    Args:
        train_fn, name, local_logdir: see `mirrored`.
        versioned_resources, description, metric_key: see `mirrored`.
        evaluator: one of the workers evaluates.

    Returns:
        The run directory, and the values that the chief returned.

    Raises:
        ConfigError: if there are no parameter servers, or too few executors.
        sparkdl.errors.SparkDLError: see `sparkdl.experiment.parameter_server`.
    """
    options = options_of(name, versioned_resources, description, metric_key)
    num_ps, num_executors = util.num_param_servers(), util.num_executors()
    if num_executors == 1:
        num_executors = util.num_slots(waits=True)
    num_workers = num_executors - num_ps - 1 - int(evaluator)
    if num_ps < 1 or num_workers < 1:
        raise ConfigError(
            f"there are {num_ps} parameter servers (NUM_TF_PS) among {num_executors} executors; "
            "expected at least one parameter server, a chief and a worker"
            f"{', and the evaluator' if evaluator else ''}. Set NUM_TF_PS in the environment of "
            "the driver, and start Spark with enough executors."
        )
    return result_of(
        experiment.parameter_server(
            train_fn,
            num_workers=num_workers,
            num_ps=num_ps,
            roles="all",
            evaluator=evaluator,
            **options,
        )
    )
