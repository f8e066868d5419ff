"""Runs on the driver (pure). The requests to end trials or the whole run, and their events."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sparkdl.errors import PreflightError
from sparkdl.runner.loop.conclusion import Conclusion
from sparkdl.runner.loop.stop_rules import Stop
from sparkdl.runs import RunState, Trial, TrialState
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.retry_choice import OUTSIDE, STOPPED
from sparkdl.runs.states import Failure, natural_state

# The reason for which a run ends whose directory another driver owns.
TAKEN_OVER = "another driver has taken over this run"


@dataclass
class StopRequests:
    """The requests to end trials or the whole run.

    Attributes:
        run: the state and the reason with which the run ends; None while it goes on.
        cancelled: the numbers of trials that the user has cancelled.
        fatal: the reason for which no trial can run; None while they can.

    Example:
        >>> stops = StopRequests()
        >>> stops.cancelled.add(3)
        >>> stops.event_of(Trial(3, {}, "")).error
        'cancelled'
        >>> stops.end_run(RunState.CANCELLED, "interrupted")
        >>> stops.event_of(Trial(4, {}, "")).error
        'the run was stopped: interrupted'
    """

    run: Stop | None = None
    cancelled: set[int] = field(default_factory=set)
    fatal: PreflightError | None = None
    _given_up: dict[int, TrialChanged] = field(default_factory=dict)

    def end_run(self, state: RunState, reason: str) -> None:
        """End the run; the first request counts."""
        self.run = self.run or (state, reason)

    def give_up(self, number: int, max_losses: int | None) -> None:
        """End a trial that Spark runs again after a loss, as its budget for losses is used up."""
        text = f"its executor was lost, and max_losses={max_losses} allows no other attempt"
        self._given_up[number] = TrialChanged(
            number=number, state=TrialState.FAILED, error=text, failure=str(Failure.LOST)
        )

    @property
    def numbers(self) -> set[int]:
        """The numbers of the trials that were ordered to end."""
        return self.cancelled | self._given_up.keys()

    def event_of(self, trial: Trial) -> TrialChanged | None:
        """Return the event of a trial that was ordered to end; None for any other trial."""
        if trial.number in self._given_up:
            return self._given_up[trial.number]
        return self.cancelled_event(trial) if self.run or trial.number in self.cancelled else None

    def cancelled_event(self, trial: Trial) -> TrialChanged:
        """Return the event of a trial that is cancelled."""
        why = f"{STOPPED}: {self.run[1]}" if self.run else "cancelled"
        return TrialChanged(number=trial.number, state=TrialState.CANCELLED, error=why)

    def attempt_ended(self, trial: Trial, conclusion: Conclusion) -> TrialChanged:
        """End the run if an attempt shows that it cannot go on; return the event of the trial."""
        event = conclusion.event
        if conclusion.fatal:
            # An executor that joined after the preflight cannot run trials.
            self.fatal = conclusion.fatal
            self.end_run(RunState.FAILED, str(conclusion.fatal))
            event = self.cancelled_event(trial)
        if conclusion.spark_ended:
            self.end_run(RunState.CANCELLED, conclusion.spark_ended)
        if self.run and event.failure == Failure.LOST:  # Resume runs it again.
            event = replace(self.cancelled_event(trial), attempt=event.attempt)
        return event

    def outcome(self, trials: Sequence[Trial]) -> tuple[RunState, str | None]:
        """Return the state with which a run ends, and the reason for which it ends early."""
        natural = natural_state(Counter(str(trial.state) for trial in trials))
        if self.run:
            state, reason = self.run
            return natural if state == RunState.COMPLETE else state, reason
        outside = [t for t in trials if (t.error or "") == OUTSIDE]
        if outside:
            what = "1 trial was" if len(outside) == 1 else f"{len(outside)} trials were"
            return RunState.CANCELLED, f"{what} cancelled outside this run"
        return natural, None


def no_slots_event(trial: Trial, why: str) -> TrialChanged:
    """Return the event of a gang that has not got its slots."""
    return TrialChanged(
        number=trial.number,
        state=TrialState.FAILED,
        error=f"{why} Before: {trial.error or 'it had not started'}",
        failure=str(Failure.DEADLINE),
    )
