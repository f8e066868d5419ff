"""Runs on the driver. What an execution asks of whatever makes its trials."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.runs import Trial

__all__ = ["Refused", "Source"]


class Refused(ValueError):
    """A trial asked for what it cannot get; it is the trial's own error."""


class Source:
    """Where trials come from beyond those that the run has; this one has no more.

    Attributes:
        prunes: it may stop trials by what they report.
        asks: trials ask for their parameters while they run.
    """

    prunes: bool = False
    asks: bool = False

    @property
    def left(self) -> float:
        """How many trials may still come."""
        return 0

    def params_of(self, trial: Trial) -> dict[str, Any]:
        """What the function is called with in a trial."""
        return trial.params

    def next(self) -> Trial:
        """One more trial; only where some are left."""
        raise NotImplementedError

    def saw(
        self, reports: Sequence[tuple[Trial, int, Mapping[str, float]]], ended: bool = False
    ) -> list[Trial]:
        """Hear what was reported, in this order; the trials that are to be stopped.

        Args:
            reports: each a trial, a step, and numbers by name.
            ended: these trials have ended; none is to be stopped.
        """
        return []

    def answer(self, trial: Trial, asked: Mapping[str, Any]) -> Any:
        """What a running trial asked for.

        Raises:
            Refused: it cannot have that.
        """
        raise NotImplementedError

    def again(self, trial: Trial, failure: str) -> None:
        """Hear that a trial begins again, after a failure of this kind."""

    def ended(self, trial: Trial) -> None:
        """Hear how a trial ended."""
