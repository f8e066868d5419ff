"""Runs on the driver. The verbs that run one training function many times, a trial each."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkdl.cluster.plan import Resources, Role
from sparkdl.errors import ConfigError, FunctionError
from sparkdl.experiment.saved_runs import load
from sparkdl.options import Options, check_count, takes_options
from sparkdl.runner.execute import execute
from sparkdl.runner.request import Request
from sparkdl.runner.signatures import check_call, takes_one
from sparkdl.runs import Run, Trial
from sparkdl.search.files.formats import read_space
from sparkdl.search.settings import Search
from sparkdl.search.space.grid import combine_values
from sparkdl.search.space.spaces import Space

__all__ = ["launch", "search"]


@takes_options
def launch(
    train: Callable[..., Any] | Any,
    args: Mapping[str, Sequence[Any]] | Callable[..., Any] | None = None,
    more: Mapping[str, Sequence[Any]] | None = None,
    *,
    combine: str = "product",
    data: Any = None,
    init_from: Trial | str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run:
    """Run a training function once for every combination of parameters, one per Spark slot.

    Each trial runs in a fresh process. What it prints, reports, returns and writes is kept in the
    run directory. `launch(spark, train, args)` is accepted too.

    Args:
        train: a function that takes its parameters by name and returns a number, a dict of
            numbers and file paths, or None. An exception makes its trial FAILED, not the run.
        args: a list of values for each parameter; None for a single trial without any.
        more: `args`, where the first argument is the SparkSession.
        combine: `product` runs every combination, `zip` the first values together, and so on.
        data: a DataFrame, or several by name: every trial gets all rows, see `data.dataset`.
            Spark reads it once for each trial; `df.cache()` saves it what can be saved.
        init_from: a trial, its folder, or one of its checkpoints: `context.get_checkpoint()` gives
            that to a trial that has none of its own.
        **options: see `sparkdl.options.Options`.

    Returns:
        The run: `run.best`, `run.to_pandas()`, `print(run)`.

    Raises:
        ConfigError, FunctionError: an argument is wrong. Nothing was started.
        PreflightError: the cluster cannot run it. No trial was started.
        RunExistsError: `run_id` exists, or is being run.
        AllTrialsFailedError: no trial completed; its cause is the first one's own exception.

    Example:
        >>> def train(learning_rate, dropout=0.5):
        ...     return {"accuracy": 1 - learning_rate * dropout}
        >>> run = launch(train, {"learning_rate": [0.1, 0.2]}, metric="accuracy", progress=False)
        >>> run.best.params
        {'learning_rate': 0.1}
    """
    parsed = Options.parse(options, launch)
    if _is_session(train):
        parsed = Options.parse({**options, "spark": train})
        train, values = args, more
    elif more is not None:
        raise ConfigError("launch takes (train, args) or (spark, train, args); got three others.")
    else:
        values = args  # type: ignore[assignment]
    params = combine_values(values, combine)
    check_call(train, params[0])
    resources = Resources(num_cpus=parsed.num_cpus, num_gpus=parsed.num_gpus)
    role = Role(name="worker", count=1, resources=resources)
    return execute(
        Request("launch", (role,), train, parsed, params, data=data, init_from=init_from)
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
    learn_from: Run | str | Sequence[Run | str] = (),
    init_from: Trial | str | os.PathLike[str] | None = None,
    repeats: int = 1,
    workers_per_trial: int = 1,
    data: Any = None,
    **options: Any,
) -> Run:
    """Search for the parameters with the best metric, each trial chosen by those before it.

    Optuna proposes on the driver, Spark runs. A slot that is free gets its next trial at once. A
    trial that a pruner stops gets `TrialPruned` from its next `context.report`; one that does not
    report within ten seconds is ended. After anything, `experiment.resume(run.path)` goes on.

    Args:
        train: a function that takes the parameters by name, see `launch`. Without a `space`, an
            objective in Optuna's style: it takes an `optuna.Trial`, asks it for parameters, and
            returns the number to make small, unless `metric` or `direction` says otherwise.
        space: for each parameter a `search.Float`, `search.Int`, `search.Categorical` or a list of
            values; a function that takes an `optuna.Trial` and returns the parameters, where some
            depend on others; or the path of a CloudML Engine or SageMaker file.
        algorithm: `random`, `grid`, `tpe`, `gp`, `cmaes`, `nsga2`, `qmc`, or an Optuna sampler.
        num_trials: how many configurations to try; None where something else ends the search.
        pruner: `median`, `asha` (asynchronous successive halving), `hyperband`, or an Optuna
            pruner: stops trials by what they report of the metric. By default none is stopped.
        stop: end when a trial's number is this good, such as `{"accuracy": 0.98}`.
        patience: end when so many configurations in a row brought nothing better.
        max_slot_hours: end when trials have used so many hours of slots.
        initial_params: the first configurations; parameters that they lack are proposed.
        learn_from: runs, or their directories, whose finished trials the sampler learns from.
        init_from: a trial, its folder, or one of its checkpoints: `context.get_checkpoint()` gives
            that to a trial that has none of its own.
        repeats: run each configuration so often, with a seed each; the sampler is told the mean.
        workers_per_trial: processes of each trial, as `allreduce` starts them.
        data: a DataFrame, or several by name; every trial gets all rows, see `data.dataset`.
        **options: see `sparkdl.options.Options`. `metric` and `direction` may be lists of the same
            length; then `run.pareto` has the trials among which to choose. With `parallelism=1`
            and a seed, the parameters are those that Optuna gives in one process.

    Returns:
        The run: `run.best`, `run.pareto`, `run.to_pandas()`, `print(run)`.

    Raises:
        ConfigError, FunctionError: an argument is wrong. Nothing was started.
        PreflightError: the cluster cannot run it. No trial was started.
        RunExistsError: `run_id` exists, or is being run, or searched another space.
        AllTrialsFailedError: no trial completed; its cause is the first one's own exception.

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
        "repeats": repeats,
    }
    found, fields, options = _space(space, fields, options)
    if found is None and {"metric", "direction"}.isdisjoint(options):
        options["direction"] = "min"  # As `study.optimize` does.
    parsed, objectives = _parse(options)
    asked = Search(found, **fields)
    names = [*objectives] or [parsed.metric or "value"]
    asked.check(names, parsed.timeout_s, tuple(parsed.env.values()))
    runs = [learn_from] if isinstance(learn_from, Run | str) else learn_from
    _check_fit(train, found, bool(runs), workers_per_trial)
    is_gang = workers_per_trial > 1
    resources = Resources(
        num_cpus=parsed.num_cpus,
        num_gpus=parsed.num_gpus,
        default_gpus="share" if is_gang else "visible",
    )
    role = Role(name="worker", count=workers_per_trial, resources=resources, in_ring=is_gang)
    return execute(
        Request(
            "search",
            (role,),
            train,
            parsed,
            search=asked,
            is_gang=is_gang,
            data=data,
            objectives=objectives,
            init_from=init_from,
            learn_from=[load(run) for run in runs],
        )
    )


def _check_fit(train: Any, space: Any, learns: bool, workers_per_trial: Any) -> None:
    """See that the function, its space and what else was asked for go together.

    Raises:
        ConfigError, FunctionError: they do not.
    """
    if isinstance(space, Space):
        check_call(train, space.dimensions)
    elif space is None and not takes_one(train):
        raise FunctionError(
            f"search got no space, and {train!r} does not take one argument. Pass space= with the "
            "values of its parameters, or a function that takes an optuna.Trial."
        )
    check_count("workers_per_trial", workers_per_trial)
    if workers_per_trial > 1 and space is None:
        raise ConfigError(
            f"workers_per_trial is {workers_per_trial}, and an objective that asks for its "
            "parameters runs in one process. Pass space= with their values."
        )
    if learns and not isinstance(space, Space):
        raise ConfigError("learn_from needs a space that is written down, as a dict.")


def _space(
    given: Any, fields: dict[str, Any], options: dict[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The space; what a file says of the search, where no argument says otherwise."""
    if isinstance(given, str | os.PathLike):
        declared = read_space(os.fspath(given))
        defaults = {"algorithm": "tpe", "num_trials": None, "pruner": None}
        said = declared.options
        own = {k: said[k] for k, v in defaults.items() if k in said and fields[k] == v}
        common = {k: v for k, v in said.items() if k not in defaults}
        return declared.space, {**fields, **own}, {**common, **options}
    if given is None or callable(given):
        return given, fields, options
    return Space.of(given), fields, options


def _parse(options: dict[str, Any]) -> tuple[Options, dict[str, str]]:
    """The options, and of several metrics the direction of each."""
    metric, direction = options.get("metric"), options.get("direction")
    if not isinstance(metric, list | tuple):
        return Options.parse(options, search), {}
    ways = list(direction) if isinstance(direction, list | tuple) else [direction] * len(metric)
    if len(ways) != len(metric) or len(set(metric)) != len(metric) or not metric:
        raise ConfigError(
            f"metric={metric!r} with direction={direction!r}; expected different names, and a "
            "direction for each."
        )
    each = [
        Options.parse({**options, "metric": name, "direction": way}, search)
        for name, way in zip(metric, ways, strict=True)
    ]
    found = {str(one.metric): str(one.direction) for one in each}
    return each[0], found if len(found) > 1 else {}


def _is_session(value: object) -> bool:
    """Whether this is a SparkSession, of Spark classic or Spark Connect."""
    return any(base.__name__ == "SparkSession" for base in type(value).__mro__)
