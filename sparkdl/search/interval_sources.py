"""Runs on the driver. Supply the trial loop with trials that continue from one another."""

from collections.abc import Mapping
from typing import Any

from sparkdl import checkpoints
from sparkdl.errors import FunctionError
from sparkdl.runs import Trial, TrialState
from sparkdl.runs.events import CommandHandled
from sparkdl.runs.opening import OpenRun
from sparkdl.search.population import Interval, Population
from sparkdl.search.population_settings import REPLAY
from sparkdl.search.settings import SearchSettings
from sparkdl.search.trial_source import RequestRefused, TrialSource


class IntervalSource(TrialSource):
    """A source whose trials are intervals of training, of a population or of one schedule.

    Args:
        opened: the run, new or resumed.
        search: the settings of the search.
    """

    def __init__(self, opened: OpenRun, search: SearchSettings) -> None:
        self._opened = opened
        self._num_trials = search.num_trials
        algorithm: Any = search.algorithm
        self._schedule: list[dict[str, Any]] | None = None
        if search.is_replay:
            self._schedule = algorithm[REPLAY]["schedule"]
        else:
            self._population = Population(search, opened.run.direction, opened.seed)

    @property
    def num_left(self) -> float:
        """The largest number of trials that the source can still create."""
        trials = self._opened.run.trials
        if self._schedule is not None:
            has_failed = any(t.state.is_final and t.state != TrialState.COMPLETE for t in trials)
            return 0 if has_failed else len(self._schedule) - len(trials)
        if self._num_trials is None:
            return float("inf")
        return max(0, self._num_trials - len(trials))

    @property
    def is_ready(self) -> bool:
        """False while the next trial depends on the result of one that runs."""
        return self._next() is not None

    def _next(self) -> Interval | None:
        trials = self._opened.run.trials
        if self._schedule is None:
            return self._population.next(trials, self._num_trials)
        if trials and not trials[-1].state.is_final:
            return None
        number = len(trials)
        return Interval(0, dict(self._schedule[number]["params"]), number - 1 if number else None)

    def next(self) -> Trial:
        """Create one more trial; only valid while the source is ready."""
        interval = self._next()
        if interval is None:
            raise RuntimeError("every member of the population is in an interval")
        seed = None
        if self._schedule is not None:
            seed = self._schedule[len(self._opened.run.trials)]["seed"]
        return self._opened.add_interval(interval.params, interval.member, interval.parent, seed)

    def limit(self, num_trials: int) -> None:
        """Create this number of trials in all."""
        self._num_trials = num_trials

    def enqueue(
        self, params: Mapping[str, Any], event: CommandHandled
    ) -> tuple[list[Trial], CommandHandled]:
        """Refuse parameters of the user: the members of a population choose theirs.

        Raises:
            RequestRefused: always.
        """
        raise RequestRefused(
            "the trials of this search continue from one another, so none can be added. Start a "
            "search with initial_params= in its place."
        )

    def observe_end(self, trial: Trial) -> None:
        """Validate that another trial can continue from one that has ended.

        Raises:
            FunctionError: if a COMPLETE trial has committed no checkpoint.
        """
        if trial.state == TrialState.COMPLETE and checkpoints.newest(trial.path) is None:
            raise FunctionError(
                f"trial {trial.number} has committed no checkpoint, from which the next interval "
                "could continue. Call context.report(..., checkpoint=folder) at the end of the "
                "training function, and begin with context.get_checkpoint()."
            )
