"""Runs on the driver. Optuna's samplers and pruners by name."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import optuna

from sparkdl.errors import ConfigError

__all__ = ["pruner_of", "sampler_of"]

# What some of Optuna's samplers need beside Optuna.
_NEEDS = {"gp": "torch", "cmaes": "cmaes"}


def sampler_of(given: Any, seed: int) -> optuna.samplers.BaseSampler:
    """The sampler of this name, or the given one.

    Raises:
        ConfigError: it is none, or lacks a package.
    """
    if isinstance(given, optuna.samplers.BaseSampler):
        return given
    samplers: dict[str, Callable[..., optuna.samplers.BaseSampler]] = {
        "random": optuna.samplers.RandomSampler,
        "grid": optuna.samplers.RandomSampler,  # Its points are queued.
        "tpe": optuna.samplers.TPESampler,
        "gp": optuna.samplers.GPSampler,
        "cmaes": optuna.samplers.CmaEsSampler,
        "nsga2": optuna.samplers.NSGAIISampler,
        # Scrambled, so that a sequence that begins anew after a resume is another one.
        "qmc": partial(optuna.samplers.QMCSampler, scramble=True),
    }
    if given not in samplers:
        raise ConfigError(f"algorithm is {given!r}; expected a name or an Optuna sampler.")
    _check_needs(given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return samplers[given](seed=seed)


def _check_needs(algorithm: str) -> None:
    package = _NEEDS.get(algorithm)
    try:
        if package:
            __import__(package)
    except ImportError as exc:
        raise ConfigError(
            f"algorithm={algorithm!r} needs the package {package}, which is not installed on the "
            f"driver. Run: pip install 'sparkdl[{algorithm}]'"
        ) from exc


def pruner_of(given: Any) -> optuna.pruners.BasePruner:
    """The pruner of this name, or the given one.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(given, optuna.pruners.BasePruner):
        return given
    pruners: dict[str | None, Callable[[], optuna.pruners.BasePruner]] = {
        None: optuna.pruners.NopPruner,
        "median": optuna.pruners.MedianPruner,
        # By default it waits for a whole trial to judge by, and a wave of them runs to its end.
        "asha": partial(optuna.pruners.SuccessiveHalvingPruner, min_resource=1),
        "hyperband": optuna.pruners.HyperbandPruner,
    }
    if given not in pruners:
        raise ConfigError(f"pruner is {given!r}; expected a name or an Optuna pruner.")
    return pruners[given]()
