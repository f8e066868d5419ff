"""Runs on the driver (pure). Decide whether a run ends before its last trial."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from sparkdl.options import Options
from sparkdl.runner.loop.smoke import first_of, has_metric
from sparkdl.runner.loop.wrong_metric import WrongMetric
from sparkdl.runs import RunState, Trial, TrialState
from sparkdl.runs.events import Event, RunEnded, TrialChanged
from sparkdl.search.population_settings import PopulationSettings
from sparkdl.search.settings import SearchSettings

# A search ends when its first trials, this many, all fail with the same error.
MAX_IDENTICAL_FAILURES = 10

# The state of the run and the reason that is written to the journal.
Stop = tuple[RunState, str]


class StopRules:
    """The rules that end a run, and the counts of ended trials to which they apply.

    With repeats, a configuration counts when all its trials have ended, with their mean.

    Args:
        options: the limits for time and failures.
        search: the rules of a search; None for a run whose trials are known.
        objectives: the direction of each metric, `max` or `min`.
        num_slots: number of slots of one trial.
        trials: all trials of the run, to which a search adds.
        events: the events of earlier drivers, whose trials are counted in the order of these.

    Attributes:
        reached_stop: why the run ends although its driver was killed before it said so; None if the
            run goes on.

    Example:
        >>> stopping = StopRules(Options(max_failed_trials=0))
        >>> failed = Trial(0, {}, "", state=TrialState.FAILED, error="ValueError: no")
        >>> stopping.trial_ended(failed)[1]
        'more than max_failed_trials=0 trials failed'
    """

    def __init__(
        self,
        options: Options,
        search: SearchSettings | None = None,
        objectives: Mapping[str, str] | None = None,
        num_slots: int = 1,
        trials: Sequence[Trial] = (),
        events: Sequence[Event] = (),
    ) -> None:
        self._wrong_metric = WrongMetric(options, search, trials)
        self._options = options
        self._search = search
        self._num_slots = num_slots
        self._signs = {n: 1.0 if d == "max" else -1.0 for n, d in (objectives or {}).items()}
        self._num_ended = 0
        self._num_failed = 0
        self._num_bad = 0
        self._errors: set[str] = set()
        # The trials that have failed, or the members of a population whose intervals have.
        self._bad: set[int] = set()
        self._best: float | None = None
        self._num_since_best = 0
        self._repeats = search.repeats if search else 1
        # The ended trials of each configuration of which a repeat has not ended.
        self._incomplete: dict[int, list[Trial]] = {}
        # The trials that were counted when the pruner let them wait.
        self._paused_trials: set[int] = set()
        self._used_s = sum(end - begin for t in trials for begin, end in t.spans if end)
        # The trials that have been seen running, those of the last look, and the time of that look.
        self._trials_seen_running = {trial.number for trial in trials if trial.spans}
        self._num_running = 0
        self._looked_s = 0.0
        self._first = first_of(()) if options.smoke else None
        self.reached_stop: Stop | None = None
        self._restore(trials, events)

    def _restore(self, trials: Sequence[Trial], events: Sequence[Event]) -> None:
        """Count the trials of earlier drivers in the order in which these have counted them."""
        changes = [(i, e) for i, e in enumerate(events) if isinstance(e, TrialChanged)]
        # A trial that ran again after its end counts when it ended for the last time.
        last = {event.number: i for i, event in changes if event.state.is_final}
        ended_trials: list[Trial] = []
        for i, event in enumerate(events):
            stop = None
            if isinstance(event, RunEnded):  # What ended the run then is done with.
                self.reached_stop = None
                self._first = first_of(ended_trials) if self._options.smoke else None
            elif isinstance(event, TrialChanged) and event.state == TrialState.PAUSED:
                stop = self.trial_paused(trials[event.number])
            elif isinstance(event, TrialChanged) and last.get(event.number) == i:
                trial = trials[event.number]
                if trial.state.is_final:
                    ended_trials.append(trial)
                    stop = self.trial_ended(trial)
            self.reached_stop = self.reached_stop or stop

    def change(
        self, options: Options, search: SearchSettings | None, trials: Sequence[Trial]
    ) -> Stop | None:
        """Apply other limits from now on; return a target that was reached before, or None.

        Args:
            options: the options with the new limits.
            search: the new rules of a search.
            trials: all trials.
        """
        self._options, self._search = options, search
        configurations: dict[int, list[Trial]] = {}
        for trial in trials:
            configurations.setdefault(trial.configuration, []).append(trial)
        whole = [members for members in configurations.values() if len(members) >= self._repeats]
        return next(filter(None, map(self._target_reached, whole)), None)

    def trial_ended(self, trial: Trial) -> Stop | None:
        """Count a trial that has ended; return why the run ends, or None if the run goes on."""
        members = self._count(trial)
        self._add_unseen(trial)
        if stop := self._first_failed(trial) or self._wrong_metric.trial_ended(trial):
            return stop
        return self._too_many_failures() or self._target_reached(members) or self._out_of_patience()

    def _add_unseen(self, trial: Trial) -> None:
        """Add the time of a trial that has begun and ended, or paused, between two looks."""
        if trial.number not in self._trials_seen_running:
            self._trials_seen_running.add(trial.number)
            self._used_s += trial.usage.starting_s + trial.usage.running_s

    def trial_paused(self, trial: Trial) -> Stop | None:
        """Count a trial that waits at a rung for the first time as one that is no better."""
        self._add_unseen(trial)
        if trial.number in self._paused_trials:
            return None
        self._paused_trials.add(trial.number)
        self._num_ended += 1
        # Before a trial is COMPLETE, there is no best value to improve on.
        self._num_since_best += self._best is not None
        return self._out_of_patience()

    def _count(self, trial: Trial) -> list[Trial]:
        """Count a trial; return the trials of its configuration if all of them have ended."""
        is_new = trial.number not in self._paused_trials
        self._num_ended += is_new
        self._num_failed += trial.state == TrialState.FAILED
        if trial.state in (TrialState.FAILED, TrialState.INVALID):
            self._num_bad += 1
            self._bad.add(trial.number if trial.member is None else trial.member)
            # Without what follows the first line, which may have shapes that differ.
            self._errors.add((trial.error or "").split("\n")[0])
        members = [*self._incomplete.pop(trial.configuration, ()), trial]
        if len(members) < self._repeats:
            self._incomplete[trial.configuration] = members
            return []
        value = self._signed_mean([member.value for member in members])
        if value is not None and (self._best is None or value > self._best):
            self._best = value
            self._num_since_best = 0
        else:
            self._num_since_best += is_new
        return members

    def _signed_mean(self, values: Sequence[float | None], metric: str = "") -> float | None:
        """Return the mean of the values, of which larger ones are better; None if one is None."""
        sign = self._signs.get(metric, next(iter(self._signs.values()), 1.0))
        valid = [value for value in values if value is not None]
        return sign * fmean(valid) if valid and len(valid) == len(values) else None

    def _first_failed(self, trial: Trial) -> Stop | None:
        is_bad = trial.state in (TrialState.FAILED, TrialState.INVALID)
        if trial.number != self._first or not is_bad:
            return None
        # A returned `value` counts as the metric only if no metric is named.
        has_names = self._signs.keys() <= {*trial.metrics, "value"}
        if (trial.state == TrialState.FAILED or has_names) and has_metric(
            trial.metrics, self._signs
        ):
            return None  # The other trials have started already.
        return RunState.FAILED, f"the first trial failed, with smoke=True: {trial.summary}"

    def _too_many_failures(self) -> Stop | None:
        max_failed = self._options.max_failed_trials
        max_identical = self._options.fail_fast_identical
        if max_identical is None and self._search:
            max_identical = MAX_IDENTICAL_FAILURES
        if max_failed is not None and self._num_failed > max_failed:
            return RunState.FAILED, f"more than max_failed_trials={max_failed} trials failed"
        is_same = self._num_bad == self._num_ended and len(self._errors) == 1
        # One member of a population may fail again and again while others train.
        is_each = len(self._bad) >= min(max_identical or 0, self._num_members)
        if is_same and is_each and max_identical and self._num_bad >= max_identical:
            error = next(iter(self._errors))
            return RunState.FAILED, f"the first {self._num_bad} trials failed alike: {error}"
        return None

    @property
    def _num_members(self) -> float:
        """The number of members of a population; infinity for trials that begin alone."""
        if self._search is None or not self._search.is_scheduled or self._search.is_replay:
            return math.inf
        return PopulationSettings.of(self._search.algorithm).population

    def _target_reached(self, members: Sequence[Trial]) -> Stop | None:
        targets = self._search.stop if self._search else None
        if not members or any(trial.state != TrialState.COMPLETE for trial in members):
            return None
        for name, target in (targets or {}).items():
            is_first = name == next(iter(self._signs))
            values = [t.value if is_first else t.metrics.get(name) for t in members]
            mean, sign = self._signed_mean(values, name), self._signs[name]
            if mean is None or mean < sign * target:
                continue
            first = members[0]
            subject = f"trial {first.number} has {name}"
            if len(members) > 1:
                subject = f"configuration {first.configuration} has a mean {name} of"
            return RunState.COMPLETE, f"stop: {subject} {sign * mean:g}, of {target:g}"
        return None

    def _out_of_patience(self) -> Stop | None:
        patience = self._search.patience if self._search else None
        if patience and self._num_since_best >= patience:
            return RunState.COMPLETE, f"patience={patience} configurations brought nothing better"
        return None

    def used_up(self, running: Sequence[Trial], elapsed_s: float) -> Stop | None:
        """Return why the run ends if its time or its slot hours are used up, otherwise None.

        Args:
            running: the trials that run now.
            elapsed_s: seconds since the first trial was submitted.
        """
        # The clock of the events may jump, as after the sleep of a laptop.
        self._used_s += self._num_running * (elapsed_s - self._looked_s)
        self._trials_seen_running |= {trial.number for trial in running}
        self._num_running, self._looked_s = len(running), elapsed_s
        limit = self._options.timeout_s
        if limit and elapsed_s > limit:
            # A search without num_trials= has done what it was asked for.
            is_open_ended = self._search is not None and self._search.is_open_ended
            state = RunState.COMPLETE if is_open_ended else RunState.CANCELLED
            return state, f"timeout_s={limit:g} is over"
        hours = self._search.max_slot_hours if self._search else None
        if hours and self._used_s * self._num_slots >= hours * 3600:
            return RunState.COMPLETE, f"max_slot_hours={hours:g} are used up"
        return None
