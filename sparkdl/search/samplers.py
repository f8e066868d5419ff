"""Runs on the driver. Create Optuna's samplers and pruners by name."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import optuna
from optuna.distributions import BaseDistribution

from sparkdl.errors import ConfigError
from sparkdl.search.pruners import NamedPruner
from sparkdl.search.rung_sampler import RungSampler

__all__ = ["pruner_of", "rung_sampler_of", "sampler_of"]

# The number of trials that the samplers of Optuna draw at random before they learn.
NUM_STARTUP = 10

# The share of the points that BOHB draws at random, from its paper.
BOHB_RANDOM = 1 / 3

# Packages that samplers of Optuna need in addition to Optuna.
_PACKAGES = {"gp": "torch", "cmaes": "cmaes"}


class _Sequence(optuna.samplers.QMCSampler):
    """A quasi-random sequence of the parameters that all trials have.

    Optuna's has those of the first trial, whichever these are, and warns of conditions.
    """

    def __init__(self, common: Mapping[str, BaseDistribution], seed: int) -> None:
        # Scrambled, so that a sequence that starts again after a resume has different points. It
        # does not warn of each parameter that it leaves to chance; docs/search.md names them.
        super().__init__(scramble=True, warn_independent_sampling=False, seed=seed)
        self._common = dict(common)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """See `BaseSampler`."""
        return self._common or super().infer_relative_search_space(study, trial)


def sampler_of(
    algorithm: Any, seed: int, common: Mapping[str, BaseDistribution] = MappingProxyType({})
) -> optuna.samplers.BaseSampler:
    """Return the sampler of this name; an Optuna sampler is returned unchanged.

    Args:
        algorithm: the name, or an Optuna sampler.
        seed: the seed of the sampler.
        common: the distributions of the parameters that all trials have, if some have others, too.

    Raises:
        ConfigError: if the name is unknown, or the sampler needs a package that is not installed.
    """
    if isinstance(algorithm, optuna.samplers.BaseSampler):
        return algorithm
    samplers: dict[str, Callable[..., optuna.samplers.BaseSampler]] = {
        "random": optuna.samplers.RandomSampler,
        # The points of a grid are enqueued, so the sampler never chooses one.
        "grid": optuna.samplers.RandomSampler,
        "tpe": optuna.samplers.TPESampler,
        # Its random points are those of `RungSampler`.
        "bohb": partial(optuna.samplers.TPESampler, n_startup_trials=0),
        "gp": optuna.samplers.GPSampler,
        # It does not warn of each parameter that it leaves to chance; docs/search.md names them.
        "cmaes": partial(optuna.samplers.CmaEsSampler, warn_independent_sampling=False),
        "nsga2": optuna.samplers.NSGAIISampler,
        "qmc": partial(_Sequence, common),
    }
    if algorithm not in samplers:
        raise ConfigError(f"algorithm is {algorithm!r}; expected a name or an Optuna sampler.")
    _check_package(algorithm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return samplers[algorithm](seed=seed % 2**32)  # NumPy takes 32 bits.


def rung_sampler_of(
    algorithm: Any, seed: int, storage: optuna.storages.BaseStorage, direction: str
) -> RungSampler | None:
    """Return the sampler of this name that learns from rungs; None if it learns from none.

    Args:
        algorithm: the name; an Optuna sampler learns from complete trials only.
        seed: the seed of the sampler.
        storage: the storage of the study.
        direction: `max` or `min`.
    """
    if algorithm not in ("tpe", "gp", "bohb"):
        return None
    is_bohb = algorithm == "bohb"
    return RungSampler(
        lambda rung: sampler_of(algorithm, seed + rung),
        storage,
        direction,
        # Below this number the samplers of Optuna draw at random.
        min_points=0 if is_bohb else NUM_STARTUP,
        random_share=BOHB_RANDOM if is_bohb else 0.0,
        seed=seed,
    )


def _check_package(algorithm: str) -> None:
    package = _PACKAGES.get(algorithm)
    try:
        if package:
            __import__(package)
    except ImportError as exc:
        raise ConfigError(
            f"algorithm={algorithm!r} needs the package {package}, which is not installed on the "
            f"driver. Run: pip install 'sparkdl[{algorithm}]'"
        ) from exc


def pruner_of(pruner: Any) -> optuna.pruners.BasePruner:
    """Return the pruner of this name or dict; an Optuna pruner is returned unchanged.

    Raises:
        ConfigError: if the name or an argument is invalid.
    """
    if pruner is None:
        return optuna.pruners.NopPruner()
    if isinstance(pruner, str | Mapping):
        return NamedPruner.of(pruner).build()
    if not isinstance(pruner, optuna.pruners.BasePruner):
        raise ConfigError(f"pruner is {pruner!r}; expected a name, a dict or an Optuna pruner.")
    return pruner
