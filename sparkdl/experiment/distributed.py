"""Runs on the driver. The verbs that run one training function in several processes at once."""

from collections.abc import Callable, Mapping
from typing import Any

from sparkdl.cluster.plan import Resources, Role
from sparkdl.cluster.spark import Cluster
from sparkdl.errors import ConfigError
from sparkdl.options import Options, check_count, takes_options
from sparkdl.runner.execute import execute
from sparkdl.runner.request import Request
from sparkdl.runner.signatures import check_call
from sparkdl.runs import Run

__all__ = ["allreduce", "horovod", "mirrored", "parameter_server"]

# An evaluator gets this long to look at the last checkpoint when all others have returned.
EVALUATOR_GRACE_S = 60.0


@takes_options
def allreduce(
    train: Callable[[], Any],
    *,
    num_workers: int,
    data: Any = None,
    evaluator: bool = False,
    elastic: bool = False,
    timeline: bool = False,
    **options: Any,
) -> Run:
    """Run a training function as one job of equal workers, all at the same time.

    Spark starts all of them or none. Each gets its GPUs and, by `framework`, `TF_CONFIG`, or what
    `torch.distributed` or JAX reads; `distribute.strategy()` makes the right strategy of it.
    Worker 0 is the chief: its value is `run.result`, its checkpoints and metrics are kept. The
    first worker that fails ends all. A lost executor starts all again, from the last checkpoint.

    Args:
        train: a function without parameters; every worker calls it.
        num_workers: how many, each in a Spark slot of its own.
        data: a DataFrame, or several by name, such as `{"train": df, "validation": other}`: every
            worker gets an equal share of the rows, see `data.dataset`.
        evaluator: one more process with the role `evaluator`, outside the workers' cluster. It is
            ended a minute after the workers have returned.
        elastic: for models with `distribute.optimizer`, and `hvd.elastic`. When a worker's process
            or executor is lost, the others go on, within a second or two, without it; Spark starts
            it again, where it finds a slot, and `fit` takes it in between two steps. No process
            that lives is restarted. There is no `TF_CONFIG` then, and no `data` or `evaluator`.
        timeline: record what the collectives of each rank did when, as a trace for
            https://ui.perfetto.dev, `timeline/<role>-<index>.json` in the trial's folder. In a
            sentence, `run.timeline` says where the time of a step went.
        **options: see `sparkdl.options.Options`.

    Returns:
        A run of one trial.

    Raises:
        ConfigError, FunctionError: an argument is wrong. Nothing was started.
        PreflightError: the cluster cannot run it, such as with fewer slots. Nothing was started.
        TrainingFailedError: a worker failed; its cause is that worker's own exception.

    Example:
        >>> def train():
        ...     from sparkdl import context
        ...     return context.world_size
        >>> allreduce(train, num_workers=2, progress=False).result
        2
    """
    parsed = Options.parse(options, allreduce)
    how = {"elastic": elastic, "timeline": timeline}
    return _equal_workers("allreduce", train, num_workers, data, parsed, how, evaluator)


@takes_options
def horovod(
    train: Callable[[], Any],
    *,
    num_workers: int,
    data: Any = None,
    elastic: bool = False,
    timeline: bool = False,
    **options: Any,
) -> Run:
    """Run a program that was written for Horovod as one job of equal workers.

    The same gang as that of `allreduce`, for a function that imports `sparkdl.horovod as hvd` where
    it imported `horovod.tensorflow`, `horovod.tensorflow.keras` or `horovod.keras`.

    Args:
        train: a function without parameters; every worker calls it.
        num_workers: how many, `hvd.size()`; each in a Spark slot of its own.
        data, elastic, timeline: see `allreduce`.
        **options: see `sparkdl.options.Options`.

    Returns:
        A run of one trial; `run.result` is what rank 0 returned.

    Raises:
        ConfigError, FunctionError, PreflightError, TrainingFailedError: see `allreduce`.

    Example:
        >>> def train():
        ...     import sparkdl.horovod as hvd
        ...     hvd.init()
        ...     return hvd.allreduce(float(hvd.rank()), op=hvd.Sum)
        >>> horovod(train, num_workers=2, progress=False).result
        1.0
    """
    parsed = Options.parse(options, horovod)
    how = {"elastic": elastic, "timeline": timeline}
    return _equal_workers("horovod", train, num_workers, data, parsed, how)


def _equal_workers(
    kind: str,
    train: Callable[[], Any],
    num_workers: int,
    data: Any,
    parsed: Options,
    how: Mapping[str, bool],
    evaluator: bool = False,
) -> Run:
    check_count("num_workers", num_workers)
    for name, value in how.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; expected True or False.")
    if how["elastic"] and (evaluator or data is not None):
        raise ConfigError(
            f"elastic=True was given with {'evaluator=True' if evaluator else 'data='}: a worker "
            "that is started again would not find its rows, or its place. Read files with "
            "sparkdl.data and validate in fit, or leave elastic=True out."
        )
    check_call(train, {})
    resources = Resources(
        num_cpus=parsed.num_cpus,
        num_gpus=parsed.num_gpus,
        default_gpus="visible" if how["elastic"] else "share",
    )
    workers = Role(
        name="worker",
        count=num_workers,
        resources=resources,
        in_ring=True,
        strategy="multi_worker" if kind == "allreduce" else "local",
    )
    return _run_gang(
        kind, (workers, *_evaluator(evaluator, resources)), train, parsed, data=data, **how
    )


def _run_gang(
    kind: str,
    roles: tuple[Role, ...],
    train: Callable[[], Any],
    options: Options,
    **fields: Any,
) -> Run:
    request = Request(
        kind, roles, train, options, [{}], is_gang=True, is_distributed=True, **fields
    )
    return execute(request)


@takes_options
def mirrored(train: Callable[[], Any], *, data: Any = None, **options: Any) -> Run:
    """Run a training function in one process with all GPUs of one executor.

    `distribute.strategy()` is then a `tf.distribute.MirroredStrategy` over these GPUs.

    Args:
        train: a function without parameters.
        data: a DataFrame, or several by name, see `data.dataset`.
        **options: see `sparkdl.options.Options`; `num_gpus` asks for fewer than all.

    Returns:
        A run of one trial; `run.result` is what `train` returned.

    Raises:
        ConfigError, FunctionError: an argument is wrong. Nothing was started.
        TrainingFailedError: `train` failed; its cause is its own exception.

    Example:
        >>> mirrored(lambda: 0.9, progress=False).result
        0.9
    """
    parsed = Options.parse(options, mirrored)
    check_call(train, {})
    num_gpus = parsed.num_gpus
    if num_gpus is None:
        num_gpus = Cluster(parsed.spark).most_gpus
    resources = Resources(num_cpus=parsed.num_cpus, num_gpus=num_gpus, default_gpus="share")
    role = Role(name="worker", count=1, resources=resources)
    return execute(
        Request("mirrored", (role,), train, parsed, [{}], data=data, is_distributed=True)
    )


@takes_options
def parameter_server(
    train: Callable[[], Any],
    *,
    num_workers: int,
    num_ps: int,
    ps_num_gpus: int = 0,
    roles: str = "coordinator",
    evaluator: bool = False,
    **options: Any,
) -> Run:
    """Run a training function with parameter servers, asynchronously.

    By default `train` runs on the coordinator (the chief) only, with
    `tf.distribute.ParameterServerStrategy` and its `ClusterCoordinator`; the workers and
    parameter servers run TensorFlow's server, and end with the coordinator. A worker that is
    killed is brought back meanwhile; after a lost parameter server all start again from the last
    checkpoint.

    Args:
        train: a function without parameters.
        num_workers, num_ps: how many of each, beside the chief; each in a Spark slot of its own.
        ps_num_gpus: GPUs that a parameter server sees. Spark gives all tasks of the job the same
            number, `num_gpus`; it may be used or not.
        roles: `coordinator`, or `all` for a program whose every process runs `train`, such as one
            of tf.compat.v1 with `replica_device_setter`. Its parameter servers need not return.
        evaluator: see `allreduce`.
        **options: see `sparkdl.options.Options`.

    Returns:
        A run of one trial; `run.result` is what `train` returned on the chief.

    Raises:
        ConfigError, FunctionError: an argument is wrong. Nothing was started.
        PreflightError: the cluster cannot run it, such as with fewer slots. Nothing was started.
        TrainingFailedError: the chief failed, or with `roles="all"` any process.

    Example:
        >>> def train():
        ...     import json, os
        ...     return len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
        >>> run = parameter_server(train, num_workers=1, num_ps=1, roles="all", progress=False)
        ... # doctest: +SKIP
    """
    parsed = Options.parse(options, parameter_server)
    check_count("num_workers", num_workers)
    check_count("num_ps", num_ps)
    if roles not in ("coordinator", "all"):
        raise ConfigError(f"roles is {roles!r}; expected 'coordinator' or 'all'.")
    if ps_num_gpus not in (0, parsed.num_gpus):
        raise ConfigError(
            f"ps_num_gpus is {ps_num_gpus!r}; expected 0, or num_gpus={parsed.num_gpus!r}: Spark "
            "gives all tasks of a job the same number of GPUs."
        )
    check_call(train, {})
    resources = Resources(num_cpus=parsed.num_cpus, num_gpus=parsed.num_gpus, default_gpus="share")
    is_served = roles == "coordinator"
    chief = Role(name="chief", count=1, resources=resources, strategy="parameter_server")
    workers = Role(
        name="worker",
        count=num_workers,
        resources=resources,
        trains=not is_served,
        runs_server=is_served,
        must_return=not is_served,
        strategy="none",
    )
    servers = Role(
        name="ps",
        count=num_ps,
        resources=resources,
        trains=False,
        runs_server=is_served,
        must_return=False,
        hides_gpus=ps_num_gpus == 0,
        strategy="none",
    )
    gang = (chief, workers, servers, *_evaluator(evaluator, resources))
    return _run_gang("parameter_server", gang, train, parsed)


def _evaluator(wanted: bool, resources: Resources) -> tuple[Role, ...]:
    """Return the role of an evaluator, which looks at the last checkpoint after the others."""
    if not wanted:
        return ()
    role = Role(
        name="evaluator",
        count=1,
        resources=resources,
        trains=False,
        in_world=False,
        must_return=False,
        grace_s=EVALUATOR_GRACE_S,
    )
    return (role,)
