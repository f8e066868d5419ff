"""Runs on the driver. Create studies of Optuna without its log lines, and ask their trials."""

import json
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution


def new_study(**arguments: Any) -> optuna.Study:
    """Return a new study.

    Args:
        **arguments: those of `optuna.create_study`, which logs a line at the level INFO.
    """
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(**arguments)
    finally:
        optuna.logging.set_verbosity(verbosity)


def suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
    """Return the value of a parameter that a trial requests."""
    if isinstance(distribution, FloatDistribution):
        bounds: tuple[Any, Any] = distribution.low, distribution.high
        return trial.suggest_float(name, *bounds, step=distribution.step, log=distribution.log)
    if isinstance(distribution, IntDistribution):
        bounds = distribution.low, distribution.high
        return trial.suggest_int(name, *bounds, step=distribution.step, log=distribution.log)
    return trial.suggest_categorical(name, distribution.choices)  # type: ignore[attr-defined]


def is_json(value: Any) -> bool:
    """Return True if a value can be written as JSON."""
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True
