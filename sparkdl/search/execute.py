"""Where it runs: D. The one way from a plan and a function to a run, for every verb."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

from sparkdl import config, storage
from sparkdl.cluster.gang import GangTask
from sparkdl.cluster.jobs import JobFailed
from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.preflight import (
    REPORT_SCHEMA,
    PreflightTask,
    check_pair,
    raise_for_problems,
)
from sparkdl.cluster.program import Program, find_framework, pack
from sparkdl.cluster.slots import check_gang
from sparkdl.cluster.spark import Cluster
from sparkdl.cluster.task import TrialTask
from sparkdl.data.source import Data, session_of
from sparkdl.errors import ConfigError, PreflightError
from sparkdl.options import Options
from sparkdl.runs import Run, Trial, record
from sparkdl.runs.start import IfExists, OpenRun, Wanted, new_run_id, open_run
from sparkdl.search.flights import Flights
from sparkdl.search.limits import Limits
from sparkdl.search.live import Live
from sparkdl.search.pace import Pace
from sparkdl.search.progress import Progress
from sparkdl.search.trials import Execution

__all__ = ["execute"]

# The verbs whose processes run at the same time and know of each other.
GANGS = ("allreduce", "parameter_server")


def execute(
    kind: str,
    roles: tuple[Role, ...],
    train: Callable[..., Any],
    params: list[dict[str, Any]],
    options: Options,
    data: Any = None,
) -> Run:
    """Run `train` once for each of `params`, each time in processes of these roles.

    Args:
        kind: the verb.
        roles: the processes of each trial.
        train, params: the person's function, and what it is called with.
        options: the verb's options.
        data: the DataFrames whose rows the processes get.

    Raises:
        ConfigError, FunctionError, PreflightError, RunExistsError: before anything was started.
        AllTrialsFailedError, TrainingFailedError: no trial completed.
    """
    versioned = _check_resources(options)
    program = pack(train)
    cluster = Cluster(options.spark or session_of(data))
    plan = _plan(kind, roles, program, options, cluster, data is not None)
    given = None if data is None else Data.of(data, cluster.spark, len(plan.readers))
    cluster.check(plan)
    check_pair(plan, config.resolve("allow_untested", None, cluster.conf))
    cluster.wait_for_executors()
    override = config.resolve("slots", None, cluster.conf)
    pace = Pace(
        lambda: cluster.slots(plan.resources, override),
        options.parallelism,
        cluster.enforces(plan.resources),
        plan.size,
    )
    if plan.is_gang:
        check_gang(plan, pace.slots, cluster.conf, cluster.master)
    opened = open_run(
        storage.absolute(options.root or cluster.root()),
        _wanted(plan, train, params, options, cluster),
        cast(IfExists, options.if_exists),
    )
    if opened.finished_before:
        opened.owner.release()
        return opened.run
    execution = _execution(opened, cluster, plan, program, params, options, pace, given)
    with execution.failing():
        _write_down(opened, train, program, versioned, options)
        if not plan.is_gang:  # Its tasks check their executors when they meet, before they start.
            _preflight(opened, cluster, plan, program)
    live = Live(execution)
    opened.run.attach(live)
    if options.wait:
        execution.execute()
    else:
        live.start()
    return opened.run


def _plan(
    kind: str,
    roles: tuple[Role, ...],
    program: Program,
    options: Options,
    cluster: Cluster,
    reads_rows: bool,
) -> Plan:
    served = any(role.served for role in roles)
    found = "tensorflow" if served else find_framework(program.imports)
    return Plan(
        kind,
        roles,
        # Rows reach a program as a tf.data.Dataset.
        options.framework or found or ("tensorflow" if reads_rows else None),
        dict(options.env),
        config.resolve("detect_gpus", None, cluster.conf),
        config.resolve("fork_server", None, cluster.conf),
        options.trial_timeout_s,
        kind in GANGS,
        config.resolve("start_timeout_s", None, cluster.conf),
        config.resolve("interface", None, cluster.conf),
    )


def _check_resources(options: Options) -> list[Path]:
    paths = [Path(path) for path in options.versioned_resources]
    for path in paths:
        if not path.exists():
            raise ConfigError(f"versioned_resources has {str(path)!r}, which does not exist.")
    return paths


def _wanted(
    plan: Plan,
    train: Callable[..., Any],
    params: list[dict[str, Any]],
    options: Options,
    cluster: Cluster,
) -> Wanted:
    name = options.name or record.function_name(train)
    return Wanted(
        id=options.run_id or new_run_id(name),
        name=name,
        kind=plan.kind,
        description=options.description,
        metric=options.metric,
        direction=cast(Literal["max", "min"], options.direction),
        params=params,
        seed=secrets.randbits(31) if options.seed is None else options.seed,
        secrets=tuple(options.env.values()),
        facts={
            "function": record.function_name(train),
            "plan": str(plan),
            "framework": plan.framework,
            "env": sorted(options.env),
            "spark": {
                "master": cluster.master,
                "application": cluster.application,
                "version": cluster.spark.version,
            },
            "versions": record.versions(),
            "git_commit": record.git_commit(Path.cwd()),
            **record.who(),
        },
    )


def _write_down(
    opened: OpenRun,
    train: Callable[..., Any],
    program: Program,
    resources: list[Path],
    options: Options,
) -> None:
    storage.write(opened.paths.environment, record.environment())
    texts = {name: source.text for name, source in program.modules.items()}
    record.write_source(opened.paths, train, texts, tuple(options.env.values()))
    for path in resources:
        storage.copy(path, storage.join(opened.paths.resources, path.name))


def _execution(
    opened: OpenRun,
    cluster: Cluster,
    plan: Plan,
    program: Program,
    params: list[dict[str, Any]],
    options: Options,
    pace: Pace,
    data: Data | None,
) -> Execution:
    feed = data.feed(plan.readers) if data else None
    rows = data.rows(plan.size, plan.readers, plan.is_gang) if data else None
    task_type = GangTask if plan.is_gang else TrialTask

    def make_task(trial: Trial, cores: int) -> TrialTask:
        return task_type(
            plan=plan,
            program=program,
            run_id=opened.run.id,
            run_path=opened.paths.folder,
            application=cluster.application,
            number=trial.number,
            params=params[trial.number],
            seed=trial.seed,
            metric=options.metric,
            direction=opened.run.direction,
            keep_checkpoints=options.keep_checkpoints,
            cores=cores,
            attempt=trial.attempts,
            versions=record.versions(),
            feed=feed,
        )

    limits = Limits(
        options.parallelism,
        options.timeout_s,
        options.max_failed_trials,
        options.fail_fast_identical,
        options.max_restarts,
        options.max_losses,
    )
    progress = Progress(opened.run, plan, options.progress)
    progress.say(f"Run {opened.run.id}: {plan}")
    progress.say(f"Everything is kept in {opened.paths.folder}")
    if program.warning:
        progress.say(f"Note: {program.warning}")
    flights = Flights(cluster, plan, opened.paths, rows)
    return Execution(opened, plan, flights, make_task, pace, limits, progress)


def _preflight(opened: OpenRun, cluster: Cluster, plan: Plan, program: Program) -> None:
    """See that every executor can run the plan, and let them import its framework meanwhile.

    Raises:
        PreflightError: at least one cannot.
    """
    count = cluster.slots_now(plan.resources)
    task = PreflightTask(
        plan,
        program,
        opened.run.id,
        opened.paths.folder,
        cluster.application,
        record.versions(),
        count,
    )
    try:
        rows = cluster.submit(
            task,
            REPORT_SCHEMA,
            num_tasks=count,
            resources=plan.resources,
            description=f"{opened.run.id} preflight",
            tags=(f"sparkdl:{opened.run.id}",),
        )
    except JobFailed as failed:
        raise PreflightError(f"Spark could not run the preflight job: {failed}") from failed
    finally:
        storage.remove(opened.paths.preflight)
    raise_for_problems(row["problem"] for row in rows)
