"""Runs on the driver. Record the trials that a pruner pauses, and how they end."""

from collections.abc import Callable
from dataclasses import replace

from sparkdl.runner.loop.stop_requests import StopRequests
from sparkdl.runner.loop.stop_rules import StopRules
from sparkdl.runs import RunState, Trial, TrialState
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.opening import OpenRun
from sparkdl.search.trial_source import TrialSource


class PausedTrials:
    """The PAUSED trials of a run.

    Args:
        opened: the run.
        source: knows which trials pause, and which never go on.
        stops: ends trials and the run.
        rules: counts the trials that pause.
    """

    def __init__(
        self, *, opened: OpenRun, source: TrialSource, stops: StopRequests, rules: StopRules
    ) -> None:
        self._opened = opened
        self._source = source
        self._stops = stops
        self._rules = rules

    def record_pause(self, trial: Trial, event: TrialChanged) -> bool:
        """Record that a trial pauses; return False for any other end.

        Args:
            trial: the trial.
            event: the event with which it would end.
        """
        if event.state != TrialState.PRUNED or trial.state == TrialState.PAUSED:
            return False
        if not self._source.is_paused(trial):
            return False
        self._opened.record(replace(event, state=TrialState.PAUSED))
        if stop := self._rules.trial_paused(trial):
            self._stops.end_run(*stop)
        return True

    def end(self, conclude: Callable[[Trial, TrialChanged], object], is_over: bool = False) -> None:
        """End the paused trials that never go on.

        Args:
            conclude: records the final event of a trial.
            is_over: no trial runs any more. Those of a run that was stopped stay PAUSED, and may
                go on when the run is resumed.
        """
        for trial in self._source.take_dropped():
            conclude(trial, TrialChanged(number=trial.number, state=TrialState.PRUNED))
        is_complete = is_over and (not self._stops.run or self._stops.run[0] == RunState.COMPLETE)
        if not is_complete and not self._stops.cancelled:
            return
        for trial in [t for t in self._opened.run.trials if t.state == TrialState.PAUSED]:
            if trial.number in self._stops.cancelled:
                conclude(trial, self._stops.cancelled_event(trial))
            elif is_complete:
                conclude(trial, TrialChanged(number=trial.number, state=TrialState.PRUNED))
