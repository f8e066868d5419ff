"""Runs on the driver (pure). maggy's optimizers, each with the arguments of `experiment.search`."""

import warnings
from collections.abc import Mapping
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.maggy.searchspace import Searchspace, dimensions_of

__all__ = ["GP", "TPE", "AbstractOptimizer", "GridSearch", "RandomSearch", "SingleRun"]


class AbstractOptimizer:
    """The base class of the optimizers.

    Args:
        pruner: None; see `experiment.search` for pruners.
        pruner_kwargs: the arguments of the pruner.

    Raises:
        ConfigError: if there is a pruner.
    """

    algorithm = ""

    def __init__(
        self, pruner: str | None = None, pruner_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        if pruner:
            raise ConfigError(
                f"pruner is {pruner!r} with {dict(pruner_kwargs or {})}, whose trials get a "
                "`budget`. Expected optimizer='asha', whose trials get one, too; or write "
                "experiment.search(..., pruner={'hyperband': {'promote': True, 'max_reports': "
                "27}}) of sparkdl, whose trials pause and go on."
            )

    def search(self, space: Searchspace, num_trials: int) -> dict[str, Any]:
        """Return the arguments of `experiment.search`.

        Args:
            space: the search space.
            num_trials: number of trials.

        Raises:
            ConfigError: if the optimizer is one of the user, or the space does not fit.
        """
        if not self.algorithm:
            raise ConfigError(
                f"optimizer is {self!r}; expected a name or one of sparkdl.maggy.optimizer. Make "
                "an own one a sampler of Optuna, and write experiment.search(train, space, "
                "algorithm=sampler) of sparkdl."
            )
        return {
            "space": dimensions_of(space),
            "algorithm": self.algorithm,
            "num_trials": num_trials,
        }


class RandomSearch(AbstractOptimizer):
    """Random hyperparameters."""

    algorithm = "random"


class GridSearch(AbstractOptimizer):
    """All combinations of hyperparameters that are DISCRETE, CATEGORICAL or INTEGER."""

    algorithm = "grid"

    def search(self, space: Searchspace, num_trials: int) -> dict[str, Any]:
        """See `AbstractOptimizer`; the space says how many trials there are."""
        return {**super().search(space, num_trials), "num_trials": None}


class SingleRun(AbstractOptimizer):
    """Trials without hyperparameters."""

    algorithm = "none"


class _Learning(AbstractOptimizer):
    """An optimizer with arguments that the sampler of sparkdl does not have."""

    def __init__(self, arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        names = ("pruner", "pruner_kwargs")
        super().__init__(**{name: arguments[name] for name in names if name in arguments})
        for name, value in arguments.items():
            if name not in (*names, *defaults, *_BAYES):
                raise TypeError(f"{type(self).__name__} got an unexpected argument {name!r}")
            setattr(self, name, value)
        changed = [
            name
            for name, value in {**defaults, **_BAYES}.items()
            if arguments.get(name, value) != value
        ]
        if changed:
            warnings.warn(
                f"{', '.join(changed)} of {type(self).__name__} has no effect: "
                f"algorithm={self.algorithm!r} of sparkdl is Optuna's. For its settings, pass a "
                "sampler of Optuna to experiment.search.",
                stacklevel=3,
            )


# The arguments that both have in common.
_BAYES = {
    "num_warmup_trials": 15,
    "random_fraction": 0.33,
    "interim_results": False,
    "interim_results_interval": 10,
}


class TPE(_Learning):
    """Tree-structured Parzen estimators, those of Optuna. The arguments have no effect.

    Args:
        gamma, n_samples, bw_estimation, bw_factor, **kwargs: the arguments of maggy.
    """

    algorithm = "tpe"

    def __init__(
        self,
        gamma: float = 0.15,
        n_samples: int = 24,
        bw_estimation: str = "normal_reference",
        bw_factor: float = 3,
        **kwargs: Any,
    ) -> None:
        arguments = {
            "gamma": gamma,
            "n_samples": n_samples,
            "bw_estimation": bw_estimation,
            "bw_factor": bw_factor,
        }
        defaults = {
            "gamma": 0.15,
            "n_samples": 24,
            "bw_estimation": "normal_reference",
            "bw_factor": 3,
        }
        super().__init__({**arguments, **kwargs}, defaults)


class GP(_Learning):
    """A Gaussian process, that of Optuna. The arguments have no effect.

    Args:
        async_strategy, impute_strategy, acq_fun, acq_fun_kwargs, acq_optimizer,
            acq_optimizer_kwargs, **kwargs: the arguments of maggy.
    """

    algorithm = "gp"

    def __init__(
        self,
        async_strategy: str = "impute",
        impute_strategy: str = "cl_min",
        acq_fun: str | None = None,
        acq_fun_kwargs: Mapping[str, Any] | None = None,
        acq_optimizer: str = "lbfgs",
        acq_optimizer_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        arguments = {
            "async_strategy": async_strategy,
            "impute_strategy": impute_strategy,
            "acq_fun": acq_fun,
            "acq_fun_kwargs": acq_fun_kwargs,
            "acq_optimizer": acq_optimizer,
            "acq_optimizer_kwargs": acq_optimizer_kwargs,
        }
        defaults = {
            **dict.fromkeys(arguments),
            "async_strategy": "impute",
            "impute_strategy": "cl_min",
            "acq_optimizer": "lbfgs",
        }
        super().__init__({**arguments, **kwargs}, defaults)
