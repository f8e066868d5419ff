"""Runs on the driver. Prepare a request: check the cluster, make the plan and count the slots.

Nothing is started here, and nothing is written.
"""

from typing import TYPE_CHECKING

from sparkdl import checkpoints, config
from sparkdl.cluster.base import Cluster
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.program.packaging import Program
from sparkdl.cluster.program.preloading import find_framework
from sparkdl.cluster.slots import check_gang
from sparkdl.cluster.spark import SparkCluster, shares_environment
from sparkdl.errors import ConfigError, RunDamagedError, RunNotFoundError, named_type
from sparkdl.files.layout import CHECKPOINTS
from sparkdl.host.optional_packages import is_installed, require
from sparkdl.host.supported_versions import check_versions
from sparkdl.options import Options
from sparkdl.runner.concurrency import Concurrency
from sparkdl.runner.display.waiting import waiting_for_executors
from sparkdl.runner.loop.callbacks import check_callbacks
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runner.request import Request
from sparkdl.runs import Trial
from sparkdl.runs.history import read_run
from sparkdl.secrets.names import known_secrets
from sparkdl.spark.versions import check_packages

if TYPE_CHECKING:
    from sparkdl.data.dataframe.inputs import DataFrameInputs


def prepare(request: Request, program: Program, cluster: Cluster | None = None) -> PreparedRun:
    """Check that a cluster can run a request.

    Args:
        request: the arguments of the verb.
        program: the packed training function.
        cluster: the cluster; by default the Spark session of the options or of the data.

    Raises:
        ConfigError: if the data, the checkpoint, the algorithm, the pruner or a callback is
            invalid, or if a version is not supported.
        MissingPackageError: if TensorBoard, or the framework of the program, is not installed.
        FunctionError: if the program is larger than what the cluster can send.
        PreflightError: if the cluster cannot run the plan.
        SlotsError: if a process, or a gang of processes, does not fit on the cluster.
    """
    from sparkdl.data.dataframe.inputs import DataFrameInputs, session_of

    options = request.options
    _check_packages(request, program, cluster)
    check_callbacks(options.callbacks)
    _check_expect(request)
    check_search(request)
    check_framework(framework_of(request, program), program)
    if cluster is None:
        cluster = SparkCluster(options.spark or session_of(request.data))
    plan = make_plan(request, program, cluster)
    data = None
    if request.data is not None:
        data = DataFrameInputs.of(request.data, cluster.spark, len(plan.readers))
    _check_row_key(request, data)
    init_from = find_initial_checkpoint(request)
    cluster.check(plan, program)
    with waiting_for_executors(cluster, print if options.progress else lambda line: None):
        cluster.wait_for_executors(plan.size, plan.resources.num_cpus)
    concurrency = make_concurrency(request, plan, cluster)
    if plan.is_gang:
        check_gang(plan, concurrency.slots, cluster.conf, cluster.master)
    return PreparedRun(
        request=request,
        program=program,
        cluster=cluster,
        plan=plan,
        concurrency=concurrency,
        data=data,
        init_from=init_from,
    )


def _check_row_key(request: Request, data: "DataFrameInputs | None") -> None:
    from sparkdl.data.row_keys import key_columns, problem_of

    columns = key_columns(request.options.row_key)
    for name, schema in data.schemas.items() if data and columns else ():
        if problem := problem_of(columns, schema):
            raise ConfigError(
                f"row_key is {request.options.row_key!r}, but of data {name!r}, {problem}."
            )


def _check_expect(request: Request) -> None:
    expect = request.options.expect
    if expect is None:
        return
    if not callable(getattr(expect, "check", None)):
        raise ConfigError(
            f"expect is {named_type(expect)}; expected a monitoring.Expectation, such as "
            "expect=monitoring.Expectation(reference='loans@stable')."
        )
    if request.data is None:
        raise ConfigError("expect= compares the rows of data=, which was not given. Pass data=.")


def _check_packages(request: Request, program: Program, cluster: Cluster | None) -> None:
    """Validate that the packages which the options and the program need are installed.

    The preflight asks executors with an environment of their own.
    """
    from sparkdl.data.dataframe.inputs import session_of

    options = request.options
    if options.tensorboard:
        require("tensorboard", "tensorboard=True")
    needed = dict(program.needed)
    if any(role.runs_server for role in request.roles):
        needed["tensorflow"] = f"experiment.{request.kind}"
    missing = {name: user for name, user in needed.items() if not is_installed(name)}
    if not missing:
        return
    check_packages()  # Before PySpark is imported.
    if cluster or shares_environment(options.spark or session_of(request.data)):
        for package, feature in missing.items():
            require(package, feature)


def framework_of(request: Request, program: Program) -> str | None:
    """Return the framework of a request; None if it uses none of the known ones."""
    if request.options.framework is not None:
        return request.options.framework
    if any(role.runs_server for role in request.roles):
        return "tensorflow"
    framework = find_framework(program.imports)
    if framework is None and request.data is not None and is_installed("tensorflow"):
        return "tensorflow"  # Rows reach a program as a tf.data.Dataset.
    return framework


def check_framework(framework: str | None, program: Program) -> None:
    """Validate the versions of the framework and of the Keras that a program uses.

    Raises:
        ConfigError: if a version is too old.
    """
    if framework == "tensorflow":
        check_versions("tensorflow", "keras")
    elif "keras" in {name.partition(".")[0] for name in program.imports}:
        check_versions("keras")


def make_plan(request: Request, program: Program, cluster: Cluster) -> Plan:
    """Return the plan of a request: the processes of a trial, their resources and time limits."""
    options = request.options
    detect_gpus = request.detect_gpus
    if detect_gpus is None:
        detect_gpus = config.resolve("detect_gpus", None, cluster.conf)
    return Plan(
        kind=request.kind,
        roles=request.roles,
        framework=framework_of(request, program),
        env=dict(options.env),
        secrets=known_secrets(options.env, options.secrets),
        detect_gpus=detect_gpus,
        shares_gpus=_shares_gpus(request, cluster),
        fork_server=config.resolve("fork_server", None, cluster.conf),
        trial_timeout_s=options.trial_timeout_s,
        is_gang=request.is_gang,
        start_timeout_s=config.resolve("start_timeout_s", options.start_timeout_s, cluster.conf),
        collective_timeout_s=config.resolve("collective_timeout_s", None, cluster.conf),
        client_silence_s=config.resolve("client_silence_s", None, cluster.conf),
        interface=config.resolve("interface", None, cluster.conf),
        elastic=request.elastic,
        moves_slow_ranks=request.moves_slow_ranks,
        timeline=request.timeline,
        ends_by_order=request.ends_by_order,
        repeatable=request.is_resumable,
    )


def _shares_gpus(request: Request, cluster: Cluster) -> bool:
    amounts = [role.resources.num_gpus for role in request.roles]
    by_default = float(cluster.conf("spark.task.resource.gpu.amount") or 0)
    return any(0 < (by_default if amount is None else amount) < 1 for amount in amounts)


def make_concurrency(request: Request, plan: Plan, cluster: Cluster) -> Concurrency:
    """Return the rule for the number of trials at once, from the slots of the cluster."""
    options = request.options
    override = config.resolve("slots", None, cluster.conf)
    return Concurrency(
        lambda: cluster.slots(plan.resources, override),
        options.parallelism,
        is_enforced=cluster.enforces(plan.resources),
        size=plan.size,
        most=len(plan.members) if plan.grows else None,
        # With parallelism=, a sampler proposes each trial from the results of all trials before.
        ahead=request.search is None or options.parallelism is None,
    )


def check_search(request: Request) -> None:
    """Validate the algorithm and the pruner of a search.

    Raises:
        ConfigError: if Optuna has no such sampler or pruner, if a module that it needs is missing,
            or if a population would not keep its checkpoints.
    """
    if request.search:
        from sparkdl.search.pruners import pruner_of
        from sparkdl.search.samplers import sampler_of

        if not request.search.is_scheduled:
            sampler_of(request.search.algorithm, seed=0)
        pruner_of(request.search.pruner)
        _check_population(request.options, request.search.is_scheduled)


def _check_population(options: Options, is_scheduled: bool) -> None:
    """Validate that trials keep the checkpoints from which others continue."""
    is_kept = options.keep_checkpoints in ("best+last", "all")
    if is_scheduled and options.trial_value == "best" and not is_kept:
        raise ConfigError(
            f"keep_checkpoints is {options.keep_checkpoints!r}, but with trial_value='best' other "
            "members of the population continue from the best checkpoint of an interval. Pass "
            "keep_checkpoints='best+last', the default, or remove trial_value."
        )


def find_initial_checkpoint(request: Request) -> tuple[str, int] | None:
    """Return the folder of a trial and the number of its checkpoint that trials begin with.

    That is the property `checkpoint` of the trial: the weights that its value belongs to.

    Raises:
        ConfigError: if there is no committed checkpoint at `init_from`.
    """
    path = request.initial
    if path is None:
        return None
    folder = path.split(f"/{CHECKPOINTS}/")[0]
    committed = [c for c in checkpoints.committed(folder) if folder == path or c.url == path]
    if not committed:
        raise ConfigError(
            f"there is no checkpoint in init_from={path}. Expected a trial that has committed one "
            "by context.report(..., checkpoint=), its folder, or trial.checkpoint."
        )
    trial = request.init_from
    if folder == path and not isinstance(trial, Trial):
        trial = _trial_in(path)
    of_value = trial.checkpoint_of_value() if isinstance(trial, Trial) else None
    return folder, (of_value or committed[-1]).number


def _trial_in(path: str) -> Trial | None:
    """Return the trial whose folder this is; None for a folder that is outside its run."""
    run_path, _, number = path.rpartition("/trials/")
    try:
        trials = read_run(run_path).trials if run_path and number.isdigit() else []
    except (RunNotFoundError, RunDamagedError):
        return None
    return trials[int(number)] if trials and int(number) < len(trials) else None
