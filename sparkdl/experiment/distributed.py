"""Runs on the driver. Run a training function in several processes at the same time."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sparkdl.cluster.plan import Resources, Role
from sparkdl.cluster.program.packaging import pack
from sparkdl.cluster.program.preloading import find_framework
from sparkdl.cluster.spark import SparkCluster
from sparkdl.errors import ConfigError, FunctionError
from sparkdl.experiment.gang_flags import check_bounds, check_flags
from sparkdl.options import Options, check_count, takes_options
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.pipeline.prepare import check_framework
from sparkdl.runner.request import Request
from sparkdl.runner.signatures import check_call
from sparkdl.runs import Run
from sparkdl.training.script import function_of

# The evaluator gets this long to evaluate the last checkpoint after all workers have returned.
EVALUATOR_GRACE_S = 60.0

Verb = TypeVar("Verb", bound=Callable[..., Any])


def _takes_only_train(verb: Verb) -> Verb:
    """Decorate a verb to refuse arguments of the training function, with a helpful error."""

    @functools.wraps(verb)
    def call(*args: Any, **options: Any) -> Any:
        if len(args) > 1:
            raise FunctionError(
                f"{verb.__name__} takes one positional argument, the training function, and got "
                f"{args[1]!r} too. The function is called without arguments: pass "
                "functools.partial(train, ...) to give it some."
            )
        return verb(*args, **options)

    return call  # type: ignore[return-value]


@takes_options
@_takes_only_train
def allreduce(
    train: Callable[[], Any] | str | os.PathLike[str],
    *,
    num_workers: int | tuple[int, int],
    args: Sequence[str] = (),
    data: Any = None,
    evaluator: bool = False,
    elastic: bool = False,
    move_slow_ranks: bool = False,
    timeline: bool = False,
    **options: Any,
) -> Run:
    """Run a training function in equal workers that all run at the same time.

    Spark starts either all workers or none. Each worker gets its GPUs, `TF_CONFIG`, and the
    variables of `torch.distributed` and JAX;
    `distribute.strategy()` creates the matching strategy. Worker 0 is the chief: its return value
    is `run.result`, and its checkpoints and metrics are stored. The first worker that fails ends
    all workers. If an executor is lost, all workers are restarted from the last checkpoint.

    Args:
        train: a function without parameters, which every worker calls; or the path of a script,
            which every worker runs as `python train.py` does. The script and the modules beside it
            travel with the run; it runs in the working directory of this process, if the worker's
            host has it.
        num_workers: number of workers, each in its own Spark slot. With `elastic=True` also the
            smallest and the largest number, such as `(2, 8)`: the job starts with the smaller one,
            grows while slots of the Spark application are idle, and gives slots back when other
            work of the application waits for them.
        args: the words after the script on its command line.
        data: a DataFrame, or several by name, such as `{"train": df, "validation": other}`. Every
            worker gets an equal share of the rows, see `data.dataset`.
        evaluator: start one more process with the role `evaluator`, outside the workers' cluster.
            It is ended one minute after the workers have returned.
        elastic: continue without a worker whose process or executor was lost; for models with
            `distribute.optimizer`, and for `hvd.elastic`. The other workers continue within a
            second or two. Spark restarts the lost worker when a slot is free, and `fit` admits it
            between two steps. No other process is restarted. An elastic job has no `TF_CONFIG`,
            `data` or `evaluator`.
        move_slow_ranks: with `elastic=True`, let a worker that the others wait for go on in a spare
            slot on another host, between two steps. Start Spark with more slots than
            `num_workers`. Slow workers are named with their hosts also without it.
        timeline: record the times of the collectives of each rank as a trace for
            https://ui.perfetto.dev, in `timeline/<role>-<index>.json` in the trial's folder.
            `run.timeline` summarizes the time of a step in one sentence.
        **options: see `sparkdl.options.Options`.

    Returns:
        A run of one trial.

    Raises:
        ConfigError, FunctionError: if an argument is invalid. Nothing was started.
        PreflightError: if the cluster cannot run the job, for example because it has too few
            slots. Nothing was started.
        TrainingFailedError: if a worker failed; its cause is the exception of that worker.
        RunStoppedError: if the run was cancelled or timed out.

    Example:
        >>> def train():
        ...     from sparkdl import context
        ...     return context.world_size
        >>> allreduce(train, num_workers=2, progress=False).result
        2
    """
    return _run_equal_workers(
        kind="allreduce",
        train=function_of(train, args),
        num_workers=num_workers,
        data=data,
        options=Options.parse(options, allreduce),
        elastic=elastic,
        move_slow_ranks=move_slow_ranks,
        timeline=timeline,
        evaluator=evaluator,
    )


@takes_options
@_takes_only_train
def horovod(
    train: Callable[[], Any] | str | os.PathLike[str],
    *,
    num_workers: int | tuple[int, int],
    args: Sequence[str] = (),
    data: Any = None,
    elastic: bool = False,
    move_slow_ranks: bool = False,
    timeline: bool = False,
    **options: Any,
) -> Run:
    """Run a program that was written for Horovod in equal workers.

    The workers are started as by `allreduce`. The function imports `sparkdl.horovod as hvd` in
    place of `horovod.tensorflow`, `horovod.tensorflow.keras` or `horovod.keras`, and
    `sparkdl.horovod.torch as hvd` in place of `horovod.torch`.

    Args:
        train: a function without parameters or the path of a script, see `allreduce`.
        num_workers: number of workers, which is `hvd.size()`, each in its own Spark slot; or the
            smallest and the largest number, see `allreduce`.
        args, data, elastic, move_slow_ranks, timeline: see `allreduce`.
        **options: see `sparkdl.options.Options`.

    Returns:
        A run of one trial; `run.result` is the return value of rank 0.

    Raises:
        ConfigError, FunctionError, PreflightError, TrainingFailedError, RunStoppedError: see
            `allreduce`.

    Example:
        >>> def train():
        ...     import sparkdl.horovod as hvd
        ...     hvd.init()
        ...     return hvd.allreduce(float(hvd.rank()), op=hvd.Sum)
        >>> horovod(train, num_workers=2, progress=False).result
        1.0
    """
    return _run_equal_workers(
        kind="horovod",
        train=function_of(train, args),
        num_workers=num_workers,
        data=data,
        options=Options.parse(options, horovod),
        elastic=elastic,
        move_slow_ranks=move_slow_ranks,
        timeline=timeline,
    )


def _run_equal_workers(
    *,
    kind: str,
    train: Callable[[], Any],
    num_workers: int | tuple[int, int],
    data: Any,
    options: Options,
    elastic: bool,
    move_slow_ranks: bool,
    timeline: bool,
    evaluator: bool = False,
) -> Run:
    flags = {"elastic": elastic, "move_slow_ranks": move_slow_ranks, "timeline": timeline}
    check_flags(flags, has_data=data is not None, evaluator=evaluator)
    least, most = check_bounds(num_workers, flags)
    check_call(train, {})
    resources = Resources(
        num_cpus=options.num_cpus,
        num_gpus=options.num_gpus,
        default_gpus="visible" if elastic else "share",
    )
    workers = Role(
        name="worker",
        count=most,
        min_count=None if least == most else least,
        resources=resources,
        in_ring=True,
        strategy="multi_worker" if kind == "allreduce" else "local",
        has_horovod_variables=kind == "horovod",
    )
    return execute(
        Request(
            kind=kind,
            roles=(workers, *_evaluator_role(evaluator, resources)),
            train=train,
            options=options,
            params=[{}],
            is_gang=True,
            is_distributed=True,
            data=data,
            elastic=elastic,
            moves_slow_ranks=move_slow_ranks,
            timeline=timeline,
        )
    )


@takes_options
@_takes_only_train
def mirrored(train: Callable[[], Any], *, data: Any = None, **options: Any) -> Run:
    """Run a training function in one process with all GPUs of one executor.

    `distribute.strategy()` returns a `tf.distribute.MirroredStrategy` over these GPUs.

    Args:
        train: a function without parameters.
        data: a DataFrame, or several by name, see `data.dataset`.
        **options: see `sparkdl.options.Options`; `num_gpus` requests fewer GPUs than all.

    Returns:
        A run of one trial; `run.result` is the return value of `train`.

    Raises:
        ConfigError, FunctionError: if an argument is invalid. Nothing was started.
        TrainingFailedError: if `train` failed; its cause is the exception of `train`.
        RunStoppedError: if the run was cancelled or timed out.

    Example:
        >>> mirrored(lambda: 0.9, progress=False).result
        0.9
    """
    parsed = Options.parse(options, mirrored)
    check_call(train, {})
    num_gpus = parsed.num_gpus
    if num_gpus is None:
        program = pack(train)
        check_framework(parsed.framework or find_framework(program.imports), program)
        num_gpus = SparkCluster(parsed.spark).most_gpus
    resources = Resources(num_cpus=parsed.num_cpus, num_gpus=num_gpus, default_gpus="share")
    role = Role(name="worker", count=1, resources=resources)
    return execute(
        Request(
            kind="mirrored",
            roles=(role,),
            train=train,
            options=parsed,
            params=[{}],
            data=data,
            is_distributed=True,
        )
    )


@takes_options
@_takes_only_train
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
    killed is restarted while the coordinator continues; if a parameter server is lost, all
    processes are restarted from the last checkpoint.

    Args:
        train: a function without parameters.
        num_workers, num_ps: number of workers and of parameter servers, in addition to the chief;
            each process has its own Spark slot.
        ps_num_gpus: number of GPUs visible to a parameter server: 0, or `num_gpus`. Spark assigns
            `num_gpus` GPUs to every task of the job in both cases.
        roles: `coordinator`, or `all` for a program in which every process runs `train`, such as
            one of tf.compat.v1 with `replica_device_setter`. With `all`, parameter servers need
            not return.
        evaluator: see `allreduce`.
        **options: see `sparkdl.options.Options`.

    Returns:
        A run of one trial; `run.result` is the return value of `train` on the chief.

    Raises:
        ConfigError, FunctionError: if an argument is invalid. Nothing was started.
        PreflightError: if the cluster cannot run the job, for example because it has too few
            slots. Nothing was started.
        TrainingFailedError: if the chief failed, or any process with `roles="all"`.
        RunStoppedError: if the run was cancelled or timed out.

    Example:
        >>> def train():
        ...     import json, os
        ...     return len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
        >>> run = parameter_server(train, num_workers=1, num_ps=1, roles="all", progress=False)
        ... # doctest: +SKIP
    """
    parsed = Options.parse(options, parameter_server)
    num_workers = check_count("num_workers", num_workers)
    num_ps = check_count("num_ps", num_ps)
    if roles not in ("coordinator", "all"):
        raise ConfigError(f"roles is {roles!r}; expected 'coordinator' or 'all'.")
    if ps_num_gpus not in (0, parsed.num_gpus):
        raise ConfigError(
            f"ps_num_gpus is {ps_num_gpus!r}; expected 0 or num_gpus={parsed.num_gpus!r}, because "
            "Spark assigns the same number of GPUs to all tasks of a job."
        )
    check_call(train, {})
    resources = Resources(num_cpus=parsed.num_cpus, num_gpus=parsed.num_gpus, default_gpus="share")
    gang = _parameter_server_roles(
        resources,
        num_workers=num_workers,
        num_ps=num_ps,
        runs_server=roles == "coordinator",
        hides_gpus=ps_num_gpus == 0,
    )
    return execute(
        Request(
            kind="parameter_server",
            roles=(*gang, *_evaluator_role(evaluator, resources)),
            train=train,
            options=parsed,
            params=[{}],
            is_gang=True,
            is_distributed=True,
        )
    )


def _parameter_server_roles(
    resources: Resources, *, num_workers: int, num_ps: int, runs_server: bool, hides_gpus: bool
) -> tuple[Role, ...]:
    """Return the roles of the chief, the workers and the parameter servers.

    Args:
        resources: the resources of each process.
        num_workers, num_ps: number of workers and of parameter servers.
        runs_server: True if workers and parameter servers run TensorFlow's server instead of the
            training function.
        hides_gpus: True if parameter servers see no GPUs.
    """
    chief = Role(name="chief", count=1, resources=resources, strategy="parameter_server")
    workers = Role(
        name="worker",
        count=num_workers,
        resources=resources,
        trains=not runs_server,
        runs_server=runs_server,
        must_return=not runs_server,
        strategy="none",
    )
    servers = Role(
        name="ps",
        count=num_ps,
        resources=resources,
        trains=False,
        runs_server=runs_server,
        must_return=False,
        hides_gpus=hides_gpus,
        strategy="none",
    )
    return chief, workers, servers


def _evaluator_role(has_evaluator: bool, resources: Resources) -> tuple[Role, ...]:
    """Return the role of the evaluator, or no role."""
    if not has_evaluator:
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
