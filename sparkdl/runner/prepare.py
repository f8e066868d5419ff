"""Runs on the driver. Prepare a request: check the cluster, make the plan and count the slots.

Nothing is started here, and nothing is written.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame

from sparkdl import checkpoints, config
from sparkdl.cluster.base import Cluster
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.preflight import check_pair
from sparkdl.cluster.program.packaging import Program, find_framework
from sparkdl.cluster.slots import check_gang
from sparkdl.cluster.spark import SparkCluster
from sparkdl.data.dataframe.inputs import DataFrameInputs, session_of
from sparkdl.errors import ConfigError, RunDamagedError, RunNotFoundError
from sparkdl.options import Options
from sparkdl.runner.callbacks import check_callbacks
from sparkdl.runner.concurrency import Concurrency
from sparkdl.runner.display.waiting import waiting_for_executors
from sparkdl.runner.request import Request
from sparkdl.runs import Trial
from sparkdl.runs.history import read_run
from sparkdl.runs.secret_names import known_secrets
from sparkdl.tensorboard_server import check_installed

__all__ = ["PreparedRun", "prepare"]


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A request together with everything that was checked before its run is opened.

    Attributes:
        request: the arguments of the verb.
        program: the training function, packed for the executors.
        cluster: the cluster that runs the trials.
        plan: the processes of a trial and their resources.
        concurrency: the number of trials that run at once.
        data: the datasets of `data=`, None without any.
        init_from: the folder of a trial and the number of its checkpoint that trials begin with.
    """

    request: Request
    program: Program
    cluster: Cluster
    plan: Plan
    concurrency: Concurrency
    data: DataFrameInputs | None = None
    init_from: tuple[str, int] | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must never be written to the run directory."""
        return self.plan.secrets

    def rows(self, num_trials: float) -> DataFrame | None:
        """Return the rows of a job, a partition for each task; None for a run without data.

        Args:
            num_trials: number of trials, each of which has a job of its own.
        """
        if self.data is None:
            return None
        plan = self.plan
        return self.data.rows(plan.size, plan.readers, plan.is_gang, is_read_again=num_trials > 1)

    def release_rows(self) -> None:
        """Remove the copy of the rows that Spark keeps for several trials."""
        if self.data is not None:
            self.data.release()


def prepare(request: Request, program: Program, cluster: Cluster | None = None) -> PreparedRun:
    """Check that a cluster can run a request.

    Args:
        request: the arguments of the verb.
        program: the packed training function.
        cluster: the cluster; by default the Spark session of the options or of the data.

    Raises:
        ConfigError: if the data, the checkpoint, the algorithm, the pruner or a callback is
            invalid, or if TensorBoard is not installed.
        FunctionError: if the program is larger than what the cluster can send.
        PreflightError: if the cluster cannot run the plan.
        SlotsError: if a process, or a gang of processes, does not fit on the cluster.
    """
    options = request.options
    if options.tensorboard:
        check_installed()
    check_callbacks(options.callbacks)
    if cluster is None:
        cluster = SparkCluster(options.spark or session_of(request.data))
    plan = make_plan(request, program, cluster)
    data = None
    if request.data is not None:
        data = DataFrameInputs.of(request.data, cluster.spark, len(plan.readers))
    init_from = find_initial_checkpoint(request)
    check_search(request)
    cluster.check(plan, program)
    check_pair(plan, config.resolve("allow_untested", None, cluster.conf))
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


def make_plan(request: Request, program: Program, cluster: Cluster) -> Plan:
    """Return the plan of a request: the processes of a trial, their resources and time limits."""
    options = request.options
    framework = options.framework
    if framework is None and any(role.runs_server for role in request.roles):
        framework = "tensorflow"
    framework = framework or find_framework(program.imports)
    if framework is None and request.data is not None:
        framework = "tensorflow"  # Rows reach a program as a tf.data.Dataset.
    detect_gpus = request.detect_gpus
    if detect_gpus is None:
        detect_gpus = config.resolve("detect_gpus", None, cluster.conf)
    return Plan(
        kind=request.kind,
        roles=request.roles,
        framework=framework,
        env=dict(options.env),
        secrets=known_secrets(options.env, options.secrets),
        detect_gpus=detect_gpus,
        shares_gpus=_shares_gpus(request, cluster),
        fork_server=config.resolve("fork_server", None, cluster.conf),
        trial_timeout_s=options.trial_timeout_s,
        is_gang=request.is_gang,
        start_timeout_s=config.resolve("start_timeout_s", None, cluster.conf),
        collective_timeout_s=config.resolve("collective_timeout_s", None, cluster.conf),
        client_silence_s=config.resolve("client_silence_s", None, cluster.conf),
        interface=config.resolve("interface", None, cluster.conf),
        elastic=request.elastic,
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
        from sparkdl.search.samplers import pruner_of, sampler_of

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
    folder = path.split(f"/{checkpoints.FOLDER}/")[0]
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
