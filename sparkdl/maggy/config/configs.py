"""Runs on the driver (pure). The configurations of maggy's experiments."""

from typing import Any

from sparkdl.errors import ConfigError

__all__ = [
    "AblationConfig",
    "BaseConfig",
    "HyperparameterOptConfig",
    "LagomConfig",
    "OptimizationConfig",
]


class LagomConfig:
    """The base class of the configurations.

    Args:
        name: the name of the run.
        description: a sentence about the run.
        hb_interval: has no effect.
    """

    def __init__(self, name: str, description: str, hb_interval: float) -> None:
        self.name = name
        self.description = description
        self.hb_interval = hb_interval


class BaseConfig(LagomConfig):
    """The configuration of a single trial.

    Args:
        name, hb_interval, description: see `LagomConfig`.
    """

    def __init__(self, name: str = "base", hb_interval: float = 1, description: str = "") -> None:
        super().__init__(name, description, hb_interval)


class HyperparameterOptConfig(LagomConfig):
    """The configuration of a search for hyperparameters.

    Args:
        num_trials, optimizer, searchspace, optimization_key, direction: see `experiment.lagom`.
        es_interval, es_min, es_policy: see `experiment.lagom`.
        name, description, hb_interval: see `LagomConfig`.
        model: passed to the training function as `model`.
        dataset: passed to the training function as `dataset`.

    Raises:
        ValueError: if `num_trials` is not above zero.
    """

    def __init__(
        self,
        num_trials: int,
        optimizer: Any,
        searchspace: Any,
        optimization_key: str = "Metric",
        direction: str = "max",
        es_interval: int = 1,
        es_min: int = 10,
        es_policy: Any = "median",
        name: str = "HPOptimization",
        description: str = "",
        hb_interval: float = 1,
        model: Any = None,
        dataset: Any = None,
    ) -> None:
        super().__init__(name, description, hb_interval)
        if not num_trials > 0:
            raise ConfigError(f"num_trials is {num_trials!r}; expected a number above zero.")
        self.num_trials = num_trials
        self.optimizer = optimizer
        self.searchspace = searchspace
        self.optimization_key = optimization_key
        self.direction = direction
        self.es_interval = es_interval
        self.es_min = es_min
        self.es_policy = es_policy
        self.model = model
        self.dataset = dataset


class OptimizationConfig(HyperparameterOptConfig):
    """The configuration of a search, under its name of maggy 1.0; see `HyperparameterOptConfig`."""

    def __init__(
        self,
        num_trials: int,
        optimizer: Any,
        searchspace: Any,
        optimization_key: str = "metric",
        direction: str = "max",
        es_interval: int = 1,
        es_min: int = 10,
        es_policy: Any = "median",
        name: str = "HPOptimization",
        description: str = "",
        hb_interval: float = 1,
    ) -> None:
        super().__init__(
            num_trials,
            optimizer,
            searchspace,
            optimization_key,
            direction,
            es_interval,
            es_min,
            es_policy,
            name,
            description,
            hb_interval,
        )


class AblationConfig(LagomConfig):
    """The configuration of an ablation study.

    Args:
        ablation_study: the study, see `AblationStudy`.
        ablator: `loco`, which leaves out one component at a time.
        direction: `max` or `min`.
        name, description, hb_interval: see `LagomConfig`.
        model: passed to the training function as `model`.
        dataset: passed to the training function as `dataset`.
    """

    def __init__(
        self,
        ablation_study: Any,
        ablator: Any = "loco",
        direction: str = "max",
        name: str = "ablationStudy",
        description: str = "",
        hb_interval: float = 1,
        model: Any = None,
        dataset: Any = None,
    ) -> None:
        super().__init__(name, description, hb_interval)
        self.ablation_study = ablation_study
        self.ablator = ablator
        self.direction = direction
        self.model = model
        self.dataset = dataset
