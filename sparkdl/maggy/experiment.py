"""Runs on the driver. Search for hyperparameters or leave components out, under maggy's names."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from sparkdl import experiment
from sparkdl.errors import ConfigError, named_type
from sparkdl.maggy import trials
from sparkdl.maggy.ablation.ablationstudy import AblationStudy
from sparkdl.maggy.ablation.loco import ablations
from sparkdl.maggy.arguments import check_function
from sparkdl.maggy.config.configs import (
    AblationConfig,
    BaseConfig,
    HyperparameterOptConfig,
    LagomConfig,
    OptimizationConfig,
)
from sparkdl.maggy.earlystop import MedianStoppingRule, NoStoppingRule
from sparkdl.maggy.optimizer import Asha, GridSearch, RandomSearch, SingleRun
from sparkdl.maggy.optimizer.bayes import GP, TPE
from sparkdl.maggy.optimizer.optimizers import AbstractOptimizer
from sparkdl.maggy.refusals import refuse
from sparkdl.maggy.results import result_of
from sparkdl.maggy.searchspace import Searchspace

__all__ = ["lagom"]

_NO_NAME = "no-name"
_OPTIMIZERS: dict[str, type[AbstractOptimizer]] = {
    "randomsearch": RandomSearch,
    "gridsearch": GridSearch,
    "asha": Asha,
    "tpe": TPE,
    "gp": GP,
    "none": SingleRun,
}


def lagom(
    train_fn: Callable[..., Any] | None = None,
    config: LagomConfig | Searchspace | str | None = None,
    *,
    name: str = _NO_NAME,
    experiment_type: str = "optimization",
    searchspace: Searchspace | None = None,
    optimizer: Any = None,
    direction: str = "max",
    num_trials: int = 1,
    ablation_study: AblationStudy | None = None,
    ablator: Any = None,
    optimization_key: str = "metric",
    hb_interval: float = 1,
    es_policy: Any = "median",
    es_interval: int = 1,
    es_min: int = 10,
    description: str = "",
    map_fun: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Run a training function as the trials of an experiment.

    The function takes by name what it needs: its hyperparameters, or all of them in a dict
    `hparams`; the `reporter`; `model` and `dataset` of a config; `dataset_function` and
    `model_function` in an ablation study. The run itself is `sparkdl.experiment.load(path)` with
    the `path` of the result.

    Args:
        train_fn: the training function; it returns the metric, or a dict with it.
        config: a configuration, as in maggy 1.0 and 1.1, without other arguments. A name, as in
            0.5, or a search space, as in 0.2, may be here, too. By default the function runs once.
        name: the name of the run.
        experiment_type: `optimization` or `ablation`.
        searchspace: the hyperparameters.
        optimizer: `randomsearch`, `gridsearch`, `asha`, `tpe`, `gp` or `none`, or an object of
            `sparkdl.maggy.optimizer`.
        direction: `max` or `min`.
        num_trials: number of trials; a grid has one for each combination.
        ablation_study: the study, for `experiment_type="ablation"`.
        ablator: `loco`, which leaves out one component at a time.
        optimization_key: the name of the metric, in a dict that the function returns.
        hb_interval: has no effect; reports are files, which the driver reads as they come.
        es_policy: `median` stops a trial that is worse than the median of the others; `none` stops
            none.
        es_interval: has no effect; reports are compared one by one, and those of later batches at
            growing intervals.
        es_min: number of trials that complete before one is stopped.
        description: a sentence about the run.
        map_fun: the name of `train_fn` in maggy 0.4.

    Returns:
        The number, the value and the hyperparameters of the best and the worst trial (`best_id`,
        `best_val`, `best_config`), `avg`, `metric_list`, `num_trials`, `early_stopped`, and the
        `path` of the run. Without a search, `{"test result": ...}` with what the function returned.

    Raises:
        ConfigError, FunctionError: if an argument is invalid. Nothing was started.
        sparkdl.errors.SparkDLError: see `sparkdl.experiment.search`.
    """
    own = {key: value for key, value in locals().items() if key in _DEFAULTS}
    function = own.pop("map_fun") or train_fn
    changed = [key for key, value in own.items() if value != _DEFAULTS[key]]
    if isinstance(config, LagomConfig) or (config is None and not changed):
        if changed:
            raise ConfigError(
                f"lagom got a config and {', '.join(changed)}. Set these in the config, or pass "
                "all arguments without it."
            )
        return _run(function, config or BaseConfig(name="maggy_experiment"))
    first = "searchspace" if isinstance(config, Searchspace) else "name"
    if config is not None and not isinstance(config, Searchspace | str):
        raise ConfigError(
            f"config is {config!r}, {named_type(config)}; expected one of "
            "sparkdl.maggy.config or sparkdl.maggy.experiment_config."
        )
    return _run(function, _config_of({**own, **({} if config is None else {first: config})}))


_DEFAULTS = dict(lagom.__kwdefaults__ or {})
launch = lagom  # Its name in maggy 0.1.


def __getattr__(name: str) -> Any:
    raise refuse(__name__, name, __all__)


def _config_of(values: Mapping[str, Any]) -> LagomConfig:
    """Return the configuration that the arguments of maggy 0.5 stand for."""
    common = ("name", "description", "hb_interval", "direction")
    kinds: dict[str, tuple[type, tuple[str, ...]]] = {
        "ablation": (AblationConfig, ("ablation_study", "ablator")),
        "optimization": (
            OptimizationConfig,
            (
                *("num_trials", "optimizer", "searchspace", "optimization_key"),
                *("es_interval", "es_min", "es_policy"),
            ),
        ),
    }
    if values["experiment_type"] not in kinds:
        raise ConfigError(
            f"experiment_type is {values['experiment_type']!r}; expected optimization or ablation."
        )
    kind, names = kinds[values["experiment_type"]]
    others = values.keys() - {*common, *names, "experiment_type"}
    if ignored := sorted(key for key in others if values[key] != _DEFAULTS[key]):
        raise ConfigError(
            f"lagom got {', '.join(ignored)} with experiment_type={values['experiment_type']!r}, "
            "which does not use this. Leave it out, or pass the other experiment_type."
        )
    config: LagomConfig = kind(**{name: values[name] for name in (*common, *names)})
    return config


def _run(function: Any, config: LagomConfig) -> dict[str, Any]:
    """Run the experiment of a configuration."""
    if isinstance(config, HyperparameterOptConfig):
        return _optimize(function, config)
    if isinstance(config, AblationConfig):
        return _ablate(function, config)
    check_function(function, ())
    run = experiment.launch(functools.partial(trials.base, function), **_options(function, config))
    return {"test result": run.result, "path": run.path}


def _options(function: Any, config: LagomConfig) -> dict[str, Any]:
    """Return the options of a run: its name, by default that of the function, and so on."""
    direction = str(getattr(config, "direction", "max")).lower()
    if direction not in ("max", "min"):
        raise ConfigError(f"direction is {direction!r}; expected max or min.")
    name = getattr(function, "__name__", "train") if config.name == _NO_NAME else config.name
    return {"name": name, "description": config.description or None, "direction": direction}


def _optimize(function: Any, config: HyperparameterOptConfig) -> dict[str, Any]:
    """Search for the hyperparameters with the best metric."""
    space = Searchspace() if config.searchspace is None else config.searchspace
    if not isinstance(space, Searchspace):
        raise ConfigError(
            f"searchspace is {space!r}, {named_type(space)}; expected a Searchspace, such as "
            'Searchspace(kernel=("INTEGER", [2, 8])).'
        )
    optimizer, policy = _optimizer_of(config.optimizer), _policy_of(config.es_policy)
    is_1_0 = isinstance(config, OptimizationConfig)
    key, model_and_data = (
        config.optimization_key,
        {"model": config.model, "dataset": config.dataset},
    )
    train = functools.partial(
        trials.optimize, function, key, model_and_data, key == "Metric" and not is_1_0
    )
    options = {**_options(function, config), "metric": key}
    if isinstance(optimizer, SingleRun):
        if space.names():
            raise ConfigError(
                f"optimizer is 'none', and the search space has {', '.join(space.names())}. Name "
                "an optimizer, such as 'randomsearch', or leave out the search space."
            )
        check_function(function, ())
        repeats = {"trial": [*range(config.num_trials)]}
        train = functools.partial(trials.repeat, function, key, model_and_data, not is_1_0)
        return result_of(experiment.launch(train, repeats, **options), stops_early=True)
    arguments = optimizer.search(space, config.num_trials)
    check_function(function, arguments["space"], takes_all=is_1_0)
    pruner = {"median": {"startup": config.es_min}} if policy == "median" else None
    return result_of(
        experiment.search(train, **arguments, pruner=pruner, **options), stops_early=True
    )


def _optimizer_of(optimizer: Any) -> AbstractOptimizer:
    if isinstance(optimizer, AbstractOptimizer):
        return optimizer
    name = "none" if optimizer is None else optimizer
    if not isinstance(name, str) or name.lower() not in _OPTIMIZERS:
        raise ConfigError(
            f"optimizer is {optimizer!r}; expected one of {', '.join(_OPTIMIZERS)}, or an object "
            "of sparkdl.maggy.optimizer."
        )
    return _OPTIMIZERS[name.lower()]()


def _policy_of(policy: Any) -> str:
    if isinstance(policy, str) and policy.lower() in ("median", "none"):
        return policy.lower()
    for cls, name in ((MedianStoppingRule, "median"), (NoStoppingRule, "none")):
        if policy is cls or isinstance(policy, cls):
            return name
    raise ConfigError(
        f"es_policy is {policy!r}; expected median or none. For another rule, write "
        "experiment.search(..., pruner=...) of sparkdl with a pruner of Optuna."
    )


def _ablate(function: Any, config: AblationConfig) -> dict[str, Any]:
    """Run one trial with all components, and one without each of them."""
    if not isinstance(config.ablation_study, AblationStudy):
        raise ConfigError(
            f"ablation_study is {config.ablation_study!r}; expected an AblationStudy."
        )
    if str(config.ablator).lower() != "loco":
        raise ConfigError(
            f"ablator is {config.ablator!r}; expected 'loco'. For another one, write "
            "experiment.launch(train, grid) of sparkdl with what each trial leaves out."
        )
    left_out = ablations(config.ablation_study)
    rows = {(t.feature, t.layer): t for t in left_out}
    if len(rows) < len(left_out):
        names = [t.params for t in left_out]
        raise ConfigError(
            f"two trials of the study are named {next(n for n in names if names.count(n) > 1)}; "
            "expected a name of its own for each feature, group of layers and custom model."
        )
    check_function(function, ("dataset_function", "model_function"))
    model_and_data = {"model": config.model, "dataset": config.dataset}
    features, layers = ([*column] for column in zip(*rows, strict=True))
    run = experiment.launch(
        functools.partial(trials.ablate, function, model_and_data, rows),
        {"ablated_feature": features, "ablated_layer": layers},
        combine="zip",
        metric="metric",
        **_options(function, config),
    )
    return result_of(run, stops_early=False)
