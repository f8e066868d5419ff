"""Runs on the driver. Run a training function many times, as the trials of one run."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sparkdl.cluster.plan import Resources, Role
from sparkdl.errors import ConfigError, FunctionError, named_type
from sparkdl.experiment.saved_runs import load
from sparkdl.options import Options, check_count, check_direction, takes_options
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.request import Request
from sparkdl.runner.signatures import check_call, takes_one
from sparkdl.runs import Run, Trial
from sparkdl.search.files.formats import SearchDeclaration, read_space
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.grid import combine_values
from sparkdl.search.space.spaces import Space
from sparkdl.secrets.names import known_secrets

Verb = TypeVar("Verb", bound=Callable[..., Any])


def _takes_session(verb: Verb) -> Verb:
    """Decorate a verb to accept a SparkSession before its other arguments."""

    @functools.wraps(verb)
    def call(*args: Any, **options: Any) -> Any:
        bases = type(args[0]).__mro__ if args else ()
        if any(base.__name__ == "SparkSession" for base in bases):  # Classic or Spark Connect.
            return verb(*args[1:], **{"spark": args[0], **options})
        if len(args) > 2:
            raise ConfigError(
                f"{verb.__name__} expects (train, args) or (spark, train, args); got {len(args)} "
                f"arguments, the first of which is {named_type(args[0])}, not a SparkSession."
            )
        return verb(*args, **options)

    return call  # type: ignore[return-value]


@takes_options
@_takes_session
def launch(
    train: Callable[..., Any],
    args: Mapping[str, Sequence[Any]] | None = None,
    *,
    combine: str = "product",
    data: Any = None,
    init_from: Trial | str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run:
    """Run a training function once for every combination of parameters, one trial per Spark slot.

    Each trial runs in a new process. The run directory stores its output, its reports, its return
    value and its files. `launch(spark, train, args)` is accepted too.

    Args:
        train: a function that takes its parameters by name and returns a number, a dict of
            numbers and file paths, or None. An exception makes its trial FAILED, not the run.
        args: a list of values for each parameter; None for a single trial without parameters.
        combine: `product` for every combination; `zip` for the first values together, the second
            values together, and so on.
        data: a DataFrame, or several by name. Every trial gets all rows, see `data.dataset`. With
            several trials, Spark keeps the rows on the executors' disks until the run ends, unless
            you have persisted the DataFrame, so that each row is computed once.
        init_from: a trial, its folder, or one of its checkpoints; of a trial, the checkpoint that
            its value belongs to. `context.get_checkpoint()` returns it in a trial that has no
            checkpoint of its own.
        **options: see `sparkdl.options.Options`.

    Returns:
        The run: `run.best`, `run.to_pandas()`, `print(run)`.

    Raises:
        ConfigError, FunctionError: if an argument is invalid. Nothing was started.
        PreflightError: if the cluster cannot run the trials. No trial was started.
        RunExistsError: if a run with this `run_id` exists or is running.
        AllTrialsFailedError: if no trial completed; its cause is the exception of the first trial.
        RunStoppedError: if the run was cancelled, timed out or was stopped in another way. The
            attribute `run` of both errors is the run.

    Example:
        >>> def train(learning_rate, dropout=0.5):
        ...     return {"accuracy": 1 - learning_rate * dropout}
        >>> run = launch(train, {"learning_rate": [0.1, 0.2]}, metric="accuracy", progress=False)
        >>> run.best.params
        {'learning_rate': 0.1}
    """
    parsed = Options.parse(options, launch)
    params = combine_values(args, combine)
    check_call(train, params[0])
    resources = Resources(num_cpus=parsed.num_cpus, num_gpus=parsed.num_gpus)
    role = Role(name="worker", count=1, resources=resources)
    return execute(
        Request(
            kind="launch",
            roles=(role,),
            train=train,
            options=parsed,
            params=params,
            data=data,
            init_from=init_from,
        )
    )


@takes_options
def search(
    train: Callable[..., Any],
    space: Mapping[str, Any] | Callable[[Any], dict[str, Any]] | str | None = None,
    *,
    algorithm: Any = "tpe",
    num_trials: int | None = None,
    pruner: Any = None,
    stop: Mapping[str, float] | None = None,
    patience: int | None = None,
    max_slot_hours: float | None = None,
    initial_params: Sequence[Mapping[str, Any]] = (),
    constraints: Sequence[str] = (),
    learn_from: Run | str | Sequence[Run | str] = (),
    init_from: Trial | str | os.PathLike[str] | None = None,
    repeats: int = 1,
    workers_per_trial: int = 1,
    data: Any = None,
    **options: Any,
) -> Run:
    """Search for the parameters with the best metric, using the results of earlier trials.

    Optuna proposes configurations on the driver, and Spark runs them. A free slot gets its next
    trial immediately. In a trial that the pruner stops, the next `context.report` raises
    `TrialPruned`; if the trial does not report within ten seconds, its process is killed.
    `experiment.resume(run.path)` continues an interrupted search. A search whose space has a finite
    number of points tries none of them twice, and ends when it has tried all.

    Args:
        train: a function that takes the parameters by name, see `launch`. Without a `space`, an
            Optuna-style objective: a function that takes an `optuna.Trial`, requests parameters
            from it and returns the value to minimize; `metric` or `direction` override this.
        space: a dict with a `search.Float`, `search.Int`, `search.Categorical` or a list of values
            for each parameter, or a dict from each choice to the space of the parameters that
            exist only with it, which are passed to `train` only then; a function that takes an
            `optuna.Trial` and returns the parameters; or the path of a CloudML Engine or
            SageMaker file.
        algorithm: `random`, `grid`, `tpe`, `gp`, `cmaes`, `nsga2`, `qmc`, or an Optuna sampler;
            `bohb`, with a pruner that promotes trials; or `pbt`, population based training, whose
            trials each train one interval, from the checkpoint that `context.get_checkpoint()`
            returns to one that they commit.
            `{"pbt": {"population": 8, "quantile": 0.25, "resample": 0.25, "factor": 1.2}}` passes
            arguments.
        num_trials: number of configurations to try; None if another rule ends the search.
        pruner: `median`, `asha` (asynchronous successive halving) or `hyperband`, which stop trials
            because of the metric they report, and count reports; or an Optuna pruner, which counts
            steps. By default no trial is stopped. A dict passes arguments, such as
            `{"asha": {"grace": 3, "reduction": 4}}`: the first `grace` reports never stop a trial,
            and after `grace * reduction**k` reports, k = 0, 1, 2 ..., a trial continues if it is
            among the best `1 / reduction` of those that came so far. By default `grace` is 1, and
            `reduction` is 4. `median` has `grace` and `startup`, the number of trials that
            complete first; `hyperband` has `grace`, `reduction` and `max_reports`. With
            `"promote": True`, trials of `asha` and `hyperband` pause after the reports of a rung,
            and the best go on later, from the checkpoint that `context.get_checkpoint()` returns.
            `hyperband` is synchronous then, needs `max_reports` and has `brackets`. With several
            metrics, the best trials are those of the first fronts, and `trial.note` says why a
            trial was stopped; pruners of Optuna are refused.
        stop: end when a trial's metric reaches this value, such as `{"accuracy": 0.98}`.
        patience: end after this number of configurations in a row without an improvement.
        max_slot_hours: end when the trials have used this number of slot hours.
        initial_params: the first configurations; the sampler chooses their missing parameters.
        constraints: expressions in the names of parameters that all configurations satisfy, such
            as `["units * layers <= 256"]`; others are never tried. An expression with a parameter
            that a configuration does not have does not apply to it.
        learn_from: runs, or their directories, whose complete trials are added to the sampler's
            data.
        init_from: a trial, its folder, or one of its checkpoints; of a trial, the checkpoint that
            its value belongs to. `context.get_checkpoint()` returns it in a trial that has no
            checkpoint of its own.
        repeats: number of trials of each configuration, each with its own seed; the sampler
            receives their mean if all are COMPLETE, and a failure if not.
        workers_per_trial: number of processes of each trial, started as by `allreduce`.
        data: a DataFrame, or several by name. Every trial gets all rows, see `data.dataset`.
        **options: see `sparkdl.options.Options`. `metric` and `direction` may be lists of the same
            length; `run.pareto` then has the trials of the Pareto front. With `parallelism=1` and
            a seed, the parameters are those that Optuna proposes in a single process, but for
            those that were tried before.

    Returns:
        The run: `run.best`, `run.pareto`, `run.to_pandas()`, `print(run)`.

    Raises:
        ConfigError, FunctionError: if an argument is invalid. Nothing was started.
        PreflightError: if the cluster cannot run the trials. No trial was started.
        RunExistsError: if a run with this `run_id` exists, is running, or has another space.
        AllTrialsFailedError: if no trial completed; its cause is the exception of the first trial.
        RunStoppedError: if the run was cancelled, timed out or was stopped in another way. The
            attribute `run` of both errors is the run.

    Example:
        >>> from sparkdl import search as spaces
        >>> def train(x, y=0):
        ...     return {"score": -((x - 2) ** 2) - y}
        >>> run = search(train, {"x": spaces.Float(-10, 10), "y": [0, 1]}, num_trials=6,
        ...              metric="score", seed=1, progress=False)
        >>> len(run.trials), sorted(run.best.params)
        (6, ['x', 'y'])
    """
    fields = {
        "algorithm": algorithm,
        "num_trials": num_trials,
        "pruner": pruner,
        "stop": stop,
        "patience": patience,
        "max_slot_hours": max_slot_hours,
        "initial_params": initial_params,
        "constraints": constraints,
        "repeats": repeats,
    }
    parsed_space, fields, options = _parse_space(space, fields, options, workers_per_trial)
    if parsed_space is None and {"metric", "direction"}.isdisjoint(options):
        options["direction"] = "min"  # The default of Optuna's `study.optimize`.
    parsed, objectives = _parse_options(options)
    settings = SearchSettings(space=parsed_space, **fields)
    settings.check([*objectives], parsed.timeout_s, known_secrets(parsed.env, parsed.secrets))
    if learn_from and settings.is_scheduled:
        raise ConfigError("learn_from= cannot be combined with algorithm='pbt'. Remove it.")
    workers_per_trial = check_count("workers_per_trial", workers_per_trial)
    runs = [learn_from] if isinstance(learn_from, Run | str) else learn_from
    _check_compatible(train, settings, bool(runs), workers_per_trial)
    return execute(
        Request(
            kind="search",
            roles=(_role(parsed, workers_per_trial),),
            train=train,
            options=parsed,
            search=settings,
            is_gang=workers_per_trial > 1,
            data=data,
            objectives=objectives if len(objectives) > 1 else {},
            init_from=init_from,
            learn_from=[load(run) for run in runs],
        )
    )


def _role(options: Options, workers_per_trial: int) -> Role:
    """Return the role of the processes of a trial; several are a gang, as in `allreduce`."""
    is_gang = workers_per_trial > 1
    resources = Resources(
        num_cpus=options.num_cpus,
        num_gpus=options.num_gpus,
        default_gpus="share" if is_gang else "visible",
    )
    return Role(
        name="worker",
        count=workers_per_trial,
        resources=resources,
        in_ring=is_gang,
        strategy="multi_worker" if is_gang else "local",
    )


def _check_compatible(
    train: Any, search: SearchSettings, learns: bool, workers_per_trial: int
) -> None:
    """Validate that the function, its space and the other arguments are compatible.

    Raises:
        ConfigError, FunctionError: if two arguments are not compatible.
    """
    space = search.space
    if isinstance(space, Space):
        for names in sorted(space.name_sets(), key=len):
            check_call(train, names, "space")
    elif space is None and not takes_one(train):
        raise FunctionError(
            f"search got no space, but {train!r} does not take one argument. Pass space= with the "
            "values of the parameters, or pass a function that takes an optuna.Trial."
        )
    if workers_per_trial > 1 and space is None:
        raise ConfigError(
            f"workers_per_trial is {workers_per_trial}, but an objective that requests its "
            "parameters runs in one process. Pass space= with the values of the parameters."
        )
    if workers_per_trial > 1 and search.promotes:
        raise ConfigError(
            f"workers_per_trial is {workers_per_trial}, but the pruner promotes trials, and the "
            "processes of a trial cannot pause together. Remove 'promote', or workers_per_trial."
        )
    if learns and not isinstance(space, Space):
        raise ConfigError("learn_from requires space= to be a dict.")


def _parse_space(
    space: Any, fields: dict[str, Any], options: dict[str, Any], workers_per_trial: int
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the space, the fields of the search settings and the options.

    Settings from a file apply unless an argument overrides them.
    """
    if isinstance(space, str | os.PathLike):
        declaration = read_space(os.fspath(space))
        if options.get("progress", True):
            _note_processes(declaration, workers_per_trial)
        defaults = {"algorithm": "tpe", "num_trials": None, "pruner": None}
        declared = declaration.options
        own = {k: declared[k] for k, v in defaults.items() if k in declared and fields[k] == v}
        common = {k: v for k, v in declared.items() if k not in defaults}
        return declaration.space, {**fields, **own}, {**common, **options}
    if space is None or callable(space):
        return space, fields, options
    return Space.of(space), fields, options


def _note_processes(declaration: SearchDeclaration, workers_per_trial: int) -> None:
    """Tell the user about the processes of each trial that a file wants and the call does not."""
    count = declaration.num_workers
    if count and workers_per_trial == 1:
        print(
            f"Note: the file has workerCount {count}, but each trial of this search is one "
            f"process. Pass workers_per_trial={count + 1} for the master and the workers.",
            flush=True,
        )
    if declaration.num_ps:
        print(
            f"Note: the file has parameterServerCount {declaration.num_ps}, which has no effect: "
            "the processes of a trial average their gradients, see workers_per_trial.",
            flush=True,
        )


def _parse_options(options: dict[str, Any]) -> tuple[Options, dict[str, str]]:
    """Return the options, and the direction of each metric; there is at least one metric."""
    metric, direction = options.get("metric"), options.get("direction")
    if not isinstance(metric, list | tuple):
        check_direction(metric, direction)
        parsed = Options.parse(options, search)
        return parsed, {parsed.metric or "value": str(parsed.direction)}
    is_list = isinstance(direction, list | tuple)
    directions: list[Any] = list(direction or ()) if is_list else [direction] * len(metric)
    if len(directions) != len(metric) or len(set(metric)) != len(metric) or not metric:
        raise ConfigError(
            f"metric={metric!r} with direction={direction!r}; expected different names, and a "
            "direction for each."
        )
    if options.get("trial_value", "last") != "last":
        raise ConfigError(
            f"trial_value is {options['trial_value']!r}, but the search has the metrics "
            f"{', '.join(metric)}, whose best values may belong to different weights. Remove it."
        )
    for name, one_direction in zip(metric, directions, strict=True):
        check_direction(name, one_direction)
    each = [
        Options.parse({**options, "metric": name, "direction": one_direction}, search)
        for name, one_direction in zip(metric, directions, strict=True)
    ]
    return each[0], {str(parsed.metric): str(parsed.direction) for parsed in each}
