"""Runs on the driver. The interface behind a run that is controlled, and the settings of it."""

from collections.abc import Mapping
from typing import Any, Protocol

from sparkdl.errors import ConfigError
from sparkdl.options import check_count, suggest_synonym
from sparkdl.runs.commands import Command

SETTINGS = ("parallelism", "num_trials", "stop", "timeout_s")

_SYNONYMS = {
    **dict.fromkeys(("n_trials", "max_trials", "num_samples", "trials"), "num_trials"),
    **dict.fromkeys(("n_jobs", "max_concurrent", "max_concurrent_trials"), "parallelism"),
    **dict.fromkeys(("timeout", "time_budget_s", "max_time"), "timeout_s"),
}


class Handle(Protocol):
    """The object behind a run: the loop in this process, or a link to the driver elsewhere."""

    def wait(self) -> None:
        """Wait until the run has ended."""

    def control(self, command: Command) -> None:
        """Let the driver carry out a command.

        Raises:
            ControlError: if the driver refuses the command, or no driver answers.
        """


def check_settings(changes: Mapping[str, Any], unknown: Mapping[str, Any]) -> None:
    """Validate the arguments of `Run.set`.

    Raises:
        ConfigError: if a name is unknown, a value is invalid, or there is none.
    """
    for name in unknown:
        hint = suggest_synonym(name, SETTINGS, _SYNONYMS)
        raise ConfigError(f"set has no {name!r}.{hint} It sets {', '.join(SETTINGS)}.")
    if not changes:
        raise ConfigError(f"set was called without a value; it sets {', '.join(SETTINGS)}.")
    for name in ("parallelism", "num_trials"):
        if name in changes:
            check_count(name, changes[name])
    stop, timeout_s = changes.get("stop", {}), changes.get("timeout_s", 1)
    if not isinstance(stop, Mapping):
        raise ConfigError(f"stop is {stop!r}; expected a dict from metric to number.")
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not (is_number and timeout_s > 0):
        raise ConfigError(f"timeout_s is {timeout_s!r}; expected seconds, a number above 0.")
