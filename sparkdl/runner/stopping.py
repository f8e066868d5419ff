"""Runs on the driver (pure). When it is enough: what ends a run before its last trial."""

import time
from collections.abc import Iterable, Mapping, Sequence

from sparkdl.runner.retries import Limits
from sparkdl.runs import RunState, Trial, TrialState
from sparkdl.search.settings import SearchSettings

__all__ = ["Stop", "Stops"]

# A search whose first trials all fail with one error will not find a better one.
ALIKE = 10

Stop = tuple[RunState, str]


class Stops:
    """Counts how trials end, and says when that ends the run.

    Args:
        limits: of failures.
        search: of what is good enough; None where nothing is.
        objectives: the direction of each metric.
        slots: of one trial.
        ended: the trials that have ended before.

    Attributes:
        limits: of failures.

    Example:
        >>> stops = Stops(Limits(max_failed_trials=0))
        >>> one = Trial(0, {}, "", state=TrialState.FAILED, error="ValueError: no")
        >>> stops.ended(one)[1]
        'more than max_failed_trials=0 trials failed'
    """

    def __init__(
        self,
        limits: Limits,
        search: SearchSettings | None = None,
        objectives: Mapping[str, str] | None = None,
        slots: int = 1,
        ended: Iterable[Trial] = (),
    ) -> None:
        self.limits, self._search, self._slots = limits, search, slots
        self._signs = {n: 1.0 if d == "max" else -1.0 for n, d in (objectives or {}).items()}
        self._is_open_ended = search is not None and search.max_configurations is None
        self._failed = self._bad = self._ended = 0
        self._errors: set[str] = set()
        self._best: float | None = None
        self._best_of: int | None = None
        self._since_best: set[int] = set()
        self._used_s = 0.0
        for trial in ended:
            self._count(trial)

    def ended(self, trial: Trial) -> Stop | None:
        """Count a trial that has ended; why that ends the run, None while it does not."""
        self._count(trial)
        return self._failures() or self._good_enough(trial)

    def _count(self, trial: Trial) -> None:
        self._ended += 1
        self._used_s += sum(end - begin for begin, end in trial.spans if end)
        self._failed += trial.state == TrialState.FAILED
        if trial.state in (TrialState.FAILED, TrialState.INVALID):
            self._bad += 1
            self._errors.add(trial.summary)
        sign = next(iter(self._signs.values()), 1.0)
        value = None if trial.value is None else sign * trial.value
        if value is not None and (self._best is None or value > self._best):
            self._best, self._best_of = value, trial.configuration
            self._since_best.clear()
        elif trial.configuration != self._best_of:
            self._since_best.add(trial.configuration)

    def _failures(self) -> Stop | None:
        most, alike = self.limits.max_failed_trials, self.limits.fail_fast_identical
        if alike is None and self._search:
            alike = ALIKE
        if most is not None and self._failed > most:
            return RunState.FAILED, f"more than max_failed_trials={most} trials failed"
        if alike and self._bad == self._ended >= alike and len(self._errors) == 1:
            why = f"the first {self._bad} trials failed alike: {next(iter(self._errors))}"
            return RunState.FAILED, why
        return None

    def _good_enough(self, trial: Trial) -> Stop | None:
        search = self._search
        if search is None:
            return None
        for name, target in (search.stop or {}).items():
            value = trial.value if name == next(iter(self._signs)) else trial.metrics.get(name)
            if trial.state != TrialState.COMPLETE or value is None:
                continue
            if self._signs[name] * value >= self._signs[name] * target:
                why = f"stop: trial {trial.number} has {name} {value:g}, of {target:g}"
                return RunState.COMPLETE, why
        if search.patience and len(self._since_best) >= search.patience:
            many = f"patience={search.patience} configurations"
            return RunState.COMPLETE, f"{many} brought nothing better"
        return None

    def used_up(self, running: Sequence[Trial], lasted_s: float) -> Stop | None:
        """Whether the time is over, or the slots' hours are used up.

        Args:
            running: trials that run now.
            lasted_s: seconds since the first trial was submitted.
        """
        limit, hours = self.limits.timeout_s, self._search and self._search.max_slot_hours
        if limit and lasted_s > limit:
            # A search without another end has done what it was asked for.
            state = RunState.COMPLETE if self._is_open_ended else RunState.CANCELLED
            return state, f"timeout_s={limit:g} is over"
        open_s = sum(time.time() - trial.spans[-1][0] for trial in running)
        if hours and (self._used_s + open_s) * self._slots >= hours * 3600:
            return RunState.COMPLETE, f"max_slot_hours={hours:g} are used up"
        return None
