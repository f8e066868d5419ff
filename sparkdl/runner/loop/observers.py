"""Runs on the driver. The objects that follow a run, for example to display the run."""

from collections.abc import Sequence
from typing import Protocol

from sparkdl.runner.harmless import tolerated
from sparkdl.runs import Trial


class RunObserver(Protocol):
    """An object that follows a run, for example to display the run.

    An exception of an observer is logged, and the run goes on.
    """

    def trial_started(self, trial: Trial, attempt: int) -> None:
        """Process the start of an attempt at a trial."""

    def trial_ended(self, trial: Trial) -> None:
        """Process the end of a trial, after its last attempt."""

    def run_ended(self) -> None:
        """Process the end of the run."""


class Observers:
    """Several observers as one, whose methods never raise.

    Args:
        observers: the observers, which are called in this order.
    """

    def __init__(self, observers: Sequence[RunObserver]) -> None:
        self._observers = observers

    def trial_started(self, trial: Trial, attempt: int) -> None:
        for observer in self._observers:
            with tolerated(f"show the start of trial {trial.number}"):
                observer.trial_started(trial, attempt)

    def trial_ended(self, trial: Trial) -> None:
        for observer in self._observers:
            with tolerated(f"show the end of trial {trial.number}"):
                observer.trial_ended(trial)

    def run_ended(self) -> None:
        for observer in self._observers:
            with tolerated("show the end of the run"):
                observer.run_ended()
