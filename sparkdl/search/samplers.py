"""Runs on the driver. Create the samplers of a study."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution

from sparkdl.errors import ConfigError
from sparkdl.host.optional_packages import require
from sparkdl.search.rung_sampler import RungSampler

# The number of trials that the samplers of Optuna draw at random before they learn.
NUM_STARTUP = 10

# The share of the points that BOHB draws at random, from its paper.
BOHB_RANDOM = 1 / 3

# Packages that samplers of Optuna need in addition to Optuna.
_PACKAGES = {"gp": ("scipy", "torch"), "cmaes": ("cmaes",), "qmc": ("scipy",)}


class _Sequence(optuna.samplers.QMCSampler):
    """A quasi-random sequence of the parameters that all trials have.

    Optuna's has those of the first trial, whichever these are, and warns of conditions.
    """

    def __init__(self, common: Mapping[str, BaseDistribution], seed: int) -> None:
        # Scrambled, so that a sequence that starts again after a resume has different points. It
        # does not warn of each parameter that it leaves to chance; docs/search.md names them.
        super().__init__(scramble=True, warn_independent_sampling=False, seed=seed)
        # Before Optuna 5, the sequence has no choices, and a search space with them is an error.
        takes_choices = not hasattr(self, "_infer_initial_search_space")
        self._is_conditional = bool(common)
        self._common = {
            name: distribution
            for name, distribution in common.items()
            if takes_choices or not isinstance(distribution, CategoricalDistribution)
        }

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """See `BaseSampler`."""
        if self._is_conditional:
            return self._common
        return super().infer_relative_search_space(study, trial)


def _tpe(multivariate: bool, **arguments: Any) -> optuna.samplers.BaseSampler:
    """Return TPE with the defaults of Optuna 5; those of Optuna 4 are others."""
    parameters = inspect.signature(optuna.samplers.TPESampler).parameters
    # It does not warn of each parameter that only some trials have, as Optuna 4.9 and later.
    warns = parameters.get("warn_independent_sampling")
    if warns is not None and warns.default:
        arguments["warn_independent_sampling"] = False
    return optuna.samplers.TPESampler(multivariate=multivariate, constant_liar=True, **arguments)


def sampler_of(
    algorithm: Any,
    seed: int,
    common: Mapping[str, BaseDistribution] = MappingProxyType({}),
    num_metrics: int = 1,
) -> optuna.samplers.BaseSampler:
    """Return the sampler of this name; an Optuna sampler is returned unchanged.

    Args:
        algorithm: the name, or an Optuna sampler.
        seed: the seed of the sampler.
        common: the distributions of the parameters that all trials have, if some have others, too.
        num_metrics: the number of metrics that the search optimizes.

    Raises:
        ConfigError: if the name is unknown, or the sampler needs a package that is not installed.
    """
    if isinstance(algorithm, optuna.samplers.BaseSampler):
        return algorithm
    samplers: dict[str, Callable[..., optuna.samplers.BaseSampler]] = {
        "random": optuna.samplers.RandomSampler,
        # The points of a grid are enqueued, so the sampler never chooses one.
        "grid": optuna.samplers.RandomSampler,
        "tpe": partial(_tpe, num_metrics == 1),
        # Its random points are those of `RungSampler`.
        "bohb": partial(_tpe, num_metrics == 1, n_startup_trials=0),
        "gp": optuna.samplers.GPSampler,
        # It does not warn of each parameter that it leaves to chance; docs/search.md names them.
        "cmaes": partial(optuna.samplers.CmaEsSampler, warn_independent_sampling=False),
        "nsga2": optuna.samplers.NSGAIISampler,
        "qmc": partial(_Sequence, common),
    }
    if algorithm not in samplers:
        raise ConfigError(f"algorithm is {algorithm!r}; expected a name or an Optuna sampler.")
    _check_packages(algorithm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return samplers[algorithm](seed=seed % 2**32)  # NumPy takes 32 bits.


def rung_sampler_of(
    algorithm: Any, seed: int, storage: optuna.storages.BaseStorage, *directions: str
) -> RungSampler | None:
    """Return the sampler of this name that learns from rungs; None if it learns from none.

    Args:
        algorithm: the name; an Optuna sampler learns from complete trials only.
        seed: the seed of the sampler.
        storage: the storage of the study.
        *directions: `max` or `min`, for each metric.
    """
    if algorithm not in ("tpe", "gp", "bohb"):
        return None
    is_bohb = algorithm == "bohb"
    return RungSampler(
        lambda rung: sampler_of(algorithm, seed + rung, num_metrics=len(directions)),
        storage,
        directions,
        # Below this number the samplers of Optuna draw at random.
        min_points=0 if is_bohb else NUM_STARTUP,
        random_share=BOHB_RANDOM if is_bohb else 0.0,
        seed=seed,
    )


def _check_packages(algorithm: str) -> None:
    for package in _PACKAGES.get(algorithm, ()):
        require(package, f"algorithm={algorithm!r}", extra=algorithm)
