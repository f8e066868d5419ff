"""Runs on the driver. Define the source that supplies the trial loop with trials."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from sparkdl.runs import Trial
from sparkdl.runs.events import CommandHandled


class RequestRefused(ValueError):
    """A trial requested something invalid. It is reported as an error of that trial."""


class TrialSource:
    """A source of trials beyond those that the run already has; this base class has none.

    Attributes:
        prunes: True if the source may stop trials because of what they report.
        answers_requests: True if trials request their parameters while they run.
        stopped: the numbers of the trials that an earlier driver has stopped, but not ended.
    """

    prunes: bool = False
    answers_requests: bool = False
    stopped: Set[int] = frozenset()

    @property
    def is_ready(self) -> bool:
        """False while the next trial depends on the result of one that runs."""
        return True

    @property
    def num_left(self) -> float:
        """The largest number of trials that the source can still create."""
        return 0

    def params_of(self, trial: Trial) -> dict[str, Any]:
        """Return the arguments of the training function in a trial."""
        return trial.params

    def next(self) -> Trial:
        """Create one more trial; only valid while `num_left` is above 0 and the source is ready."""
        raise NotImplementedError

    def limit(self, num_trials: int) -> None:
        """Create trials of this number of configurations in all."""
        raise NotImplementedError

    def enqueue(
        self, params: Mapping[str, Any], event: CommandHandled
    ) -> tuple[list[Trial], CommandHandled]:
        """Create a configuration with parameters that the user has chosen.

        Args:
            params: the parameters; others are chosen by the source.
            event: the event of the command, which is recorded together with the trials.

        Returns:
            The new trials, and the event with the number of the first of the configuration.

        Raises:
            RequestRefused: if the parameters are invalid.
        """
        raise NotImplementedError

    def observe_reports(
        self, reports: Sequence[tuple[Trial, int, Mapping[str, float]]], are_over: bool = False
    ) -> list[Trial]:
        """Take in the reports of trials and return the trials to stop.

        Args:
            reports: a trial, a step and the reported numbers by name, in the order of reporting.
            are_over: True if these trials have ended, so that none of them can be stopped.
        """
        return []

    def answer(self, trial: Trial, request: Mapping[str, Any]) -> Any:
        """Return the answer to a request of a running trial.

        Raises:
            RequestRefused: if the request is invalid.
        """
        raise NotImplementedError

    def rungs_of(self, trial: Trial) -> tuple[tuple[int, ...], tuple[int, int]]:
        """Return the numbers of reports at which a trial asks, and what it has reported before.

        See `TrialSpec.rungs` and `TrialSpec.reported`.
        """
        return (), (0, -1)

    def is_paused(self, trial: Trial) -> bool:
        """Return True if a trial that was stopped only pauses, and `next` may return it later."""
        return False

    def why_stopped(self, trial: Trial) -> str | None:
        """Return why the source has stopped a trial, for its note; None if it does not tell."""
        return None

    def take_dropped(self) -> list[Trial]:
        """Return the PAUSED trials that never go on; each is returned once."""
        return []

    def restarted(self, trial: Trial, failure: str) -> None:
        """Take note that a trial is restarted after this kind of failure."""

    def observe_end(self, trial: Trial) -> None:
        """Take note that a trial has ended."""
