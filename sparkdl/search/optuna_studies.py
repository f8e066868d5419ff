"""Runs on the driver. Create studies of Optuna without its log lines."""

from typing import Any

import optuna


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
