"""Runs on the driver. The commands that a run accepts from a user while it goes on."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from sparkdl.errors import ConfigError, ControlError
from sparkdl.options import check_count, plain_number, suggest_synonym
from sparkdl.runs.control import Command
from sparkdl.runs.trial import Trial

__all__ = ["Controllable", "Handle"]

Self = TypeVar("Self", bound="Controllable")

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


class Controllable:
    """The base class of a run, with the methods that reach its driver.

    The methods work in the program that runs the run, and on a run of `experiment.load` whose
    driver lives in another process or on another host. There, each is a file in the run directory
    that the driver reads, and the method returns when the driver has answered.
    """

    id: str
    trials: list[Trial]
    _handle: Handle | None

    def attach(self, handle: Handle) -> None:
        """Set the object that executes this run, or reaches its driver."""
        self._handle = handle

    def wait(self: Self) -> Self:
        """Wait until the run has ended, and return the run.

        Ctrl-C cancels a run of this process. It only ends the waiting for a run of another process.

        Raises:
            RunStoppedError, AllTrialsFailedError, TrainingFailedError: if the run is not COMPLETE
                then, see `raise_unless_complete`.
        """
        if self._handle:
            self._handle.wait()
        return self

    def cancel(self, trial: Trial | int | None = None) -> None:
        """Cancel one trial, or the whole run; finished trials keep their results.

        In the program that runs the run, the method returns at once, and does nothing if the run
        has ended.

        Raises:
            ConfigError: if the run has no such trial, or `trial` is neither a trial nor a number.
            ControlError: if the run of another process has ended, or its driver does not answer.
        """
        number = plain_number(trial.number if isinstance(trial, Trial) else trial)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise ConfigError(f"trial is {trial!r}; expected a trial, or its number, such as 3.")
        if self._handle:
            self._handle.control(Command("cancel", {} if number is None else {"trial": number}))

    def set(
        self,
        *,
        parallelism: int | None = None,
        num_trials: int | None = None,
        stop: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        **unknown: Any,
    ) -> None:
        """Change limits of the run while it goes on. A resumed run keeps the new values.

        Args:
            parallelism: largest number of trials at the same time. Running trials go on.
            num_trials: total number of configurations that a search tries.
            stop: target value of each metric of a search, by name; a trial that has reached a
                target ends the search.
            timeout_s: time limit for all trials together, in seconds since the first one started.
            **unknown: raises an error that names the setting that was probably meant.

        Raises:
            ConfigError: if a value is invalid, or no value is given.
            ControlError: if the driver refuses, for example a `num_trials` below the number of
                configurations that the search has, or does not answer. Nothing was changed.
        """
        values = {
            "parallelism": plain_number(parallelism),
            "num_trials": plain_number(num_trials),
            "stop": {name: plain_number(value) for name, value in stop.items()}
            if isinstance(stop, Mapping)
            else stop,
            "timeout_s": plain_number(timeout_s),
        }
        changes = {name: value for name, value in values.items() if value is not None}
        _check_settings(changes, unknown)
        self._control(Command("set", changes))

    def enqueue(self, params: Mapping[str, Any]) -> None:
        """Add a trial with these parameters to a launch or a search.

        In a search the trial runs before others that the sampler proposes, and `num_trials` grows
        by one. The sampler chooses parameters that are missing, and learns from the result.

        Raises:
            ConfigError: if a value cannot be stored, or looks like a credential.
            ControlError: if the driver refuses, for example parameters that the training function
                does not take, or does not answer. Nothing was changed.
        """
        if not isinstance(params, Mapping):
            raise ConfigError(f"params is {params!r}; expected a dict from parameter to value.")
        self._control(Command("enqueue", {"params": dict(params)}))

    def pause(self) -> None:
        """Start no more trials until `unpause`; running trials go on.

        The time limit of the run goes on, too. A paused run whose driver ends can be resumed.

        Raises:
            ControlError: if the run has ended, or its driver does not answer.
        """
        self._control(Command("pause"))

    def unpause(self) -> None:
        """Start trials again after `pause`.

        Raises:
            ControlError: if the run has ended, or its driver does not answer.
        """
        self._control(Command("unpause"))

    def _control(self, command: Command) -> None:
        if self._handle is None:
            raise ControlError(f"{command}: run {self.id} has no driver in this process.", self)
        self._handle.control(command)


def _check_settings(changes: Mapping[str, Any], unknown: Mapping[str, Any]) -> None:
    """Validate the arguments of `set`.

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
