"""Runs on the driver. Supply the trial loop with trials that pause, and go on from a checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sparkdl import checkpoints
from sparkdl.runs import Trial
from sparkdl.runs.events import Event, ReportsReceived, TrialChanged
from sparkdl.runs.journal import read_journal
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.states import TrialState
from sparkdl.search.promotion import promotion_of
from sparkdl.search.pruners import NamedPruner, ReportNumbers
from sparkdl.search.settings import SearchSettings
from sparkdl.search.study import Study
from sparkdl.search.study_source import StudySource
from sparkdl.search.trial_records import numbers_of, read_records, reports_event
from sparkdl.search.whole_reports import Values


class PromotingSource(StudySource):
    """A source whose trials pause at rungs, see `Promotion`.

    A trial asks at a rung whether it goes on, after the checkpoint of that report is committed.
    What the rule knows follows from the journal and the reports, so that a resumed run continues.

    Args:
        opened, search, study, notify: see `StudySource`.
    """

    def __init__(
        self,
        opened: OpenRun,
        search: SearchSettings,
        study: Study,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(opened, search, study, notify)
        directions = opened.run.directions.values()
        self._rule = promotion_of(NamedPruner.of(search.pruner), *directions)
        # The number of the reports of each trial, and the step of the last one.
        self._counts = ReportNumbers()
        self._last_reports: dict[int, tuple[int, int]] = {}
        # The reports at rungs about which nothing is decided yet: number, step and values.
        self._undecided: dict[int, list[tuple[int, int, tuple[float, ...]]]] = {}
        self._pausing: list[Trial] = []
        self._has_checkpoints = False
        self.answers_requests = True
        self._restore_rungs()

    # ---- trials of earlier drivers

    def _restore_rungs(self) -> None:
        events, trials = read_journal(self._opened.paths.journal), self._opened.run.trials
        for trial in trials:
            self._rule.add(trial.number)
        records = read_records(events)
        # Samplers weigh values by their order, which is that in which rungs were reached.
        for event in events:
            if isinstance(event, ReportsReceived):
                for (number, _, _), report in zip(event.reports, numbers_of(event), strict=True):
                    reports = records[number].reports
                    if report in reports and report + 1 in self._rule.rungs(number)[:1]:
                        self._reach(trials[number], report + 1, *reports[report])
        # More trials do not compete with those of a search that has ended.
        if all(trial.state.is_final for trial in trials) or not super().num_left:
            self._rule.close()
        changed = []
        for trial in trials:
            if trial.state.is_final:
                self._rule.end(trial.number, _has_failed(trial))
                continue
            was_told = bool(trial.number in records and records[trial.number].stops)
            has_stayed, is_paused = (
                self._has_stayed(trial, was_told),
                trial.state == TrialState.PAUSED,
            )
            if has_stayed and not is_paused:
                changed.append(_change_of(trial, TrialState.PAUSED))
            elif is_paused and not has_stayed:  # With the arguments of another pruner.
                changed.append(_change_of(trial, TrialState.WAITING))
        self._opened.record(*changed)

    def _has_stayed(self, trial: Trial, was_told: bool) -> bool:
        """Count the reports of an unfinished trial; return True if it pauses at a rung.

        Args:
            trial: the trial.
            was_told: the earlier driver has told it to pause at the last rung that it had heard of.
        """
        self._rule.promote(trial.number)
        reports = [(trial, *report) for report in trial.reports()]
        self._count(self._reported_values(reports))
        self._decide(trial)
        if trial.failure is not None:  # It runs again, wherever it has failed.
            self._rule.promote(trial.number)
            return False
        count, _ = self._last_reports.get(trial.number, (0, -1))
        rung = self._rule.last_rung(trial.number)
        # A driver may have ended between its decision and the end of the process.
        if rung is not None and (trial.state == TrialState.PAUSED or (was_told and count == rung)):
            self._rule.pause(trial.number)
        return self._rule.is_paused(trial.number)

    # ---- new trials, and trials that go on

    @property
    def num_left(self) -> float:
        """The largest number of trials that the source can create, or let go on now."""
        return super().num_left + len(self._promotable())

    def _promotable(self) -> list[Trial]:
        """Return the paused trials that may go on now, the most advanced first."""
        if not super().num_left:
            self._rule.close()
        trials = [self._opened.run.trials[number] for number in self._rule.promotable()]
        # The process of a trial that was paused a moment ago may not have ended yet.
        return [trial for trial in trials if trial.state == TrialState.PAUSED]

    def next(self) -> Trial:
        """Let a paused trial go on, or create one more trial."""
        for trial in self._promotable():
            self._rule.promote(trial.number)
            self._opened.record(_change_of(trial, TrialState.WAITING))
            return trial
        return super().next()

    def _add(
        self,
        configuration: int,
        params: dict[str, Any],
        suggested: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
        count: int = 1,
        also: Sequence[Event] = (),
    ) -> list[Trial]:
        trials = super()._add(configuration, params, suggested, count, also)
        for trial in trials:
            self._rule.add(trial.number)
        return trials

    def rungs_of(self, trial: Trial) -> tuple[tuple[int, ...], tuple[int, int]]:
        """Return the numbers of reports at which a trial asks, and what it has reported before."""
        return self._rule.rungs(trial.number), self._last_reports.get(trial.number, (0, -1))

    # ---- reports and requests of running trials

    def observe_reports(
        self, reports: Sequence[tuple[Trial, int, Mapping[str, float]]], are_over: bool = False
    ) -> list[Trial]:
        """Count reports, and return the trials that were told to pause since the last call."""
        self._notes.on_reports(reports)
        self._count(self._reported_values(reports))
        pausing, self._pausing = self._pausing, []
        return pausing

    def _count(self, reports: Sequence[Values]) -> None:
        for trial, step, values in reports:
            self._notes.on_report_to_pruner(trial, step)
            # As in `Rungs`, steps count from 0.
            number = self._counts.next(trial.configuration, step) if step >= 0 else None
            if number is None:
                continue
            self._last_reports[trial.number] = number + 1, step
            if number + 1 in self._rule.rungs(trial.number):
                self._undecided.setdefault(trial.number, []).append((number + 1, step, values))

    def answer(self, trial: Trial, request: Mapping[str, Any]) -> Any:
        """Return True if a trial that has reached a rung goes on."""
        self._decide(trial)
        if is_paused := self._rule.is_paused(trial.number):
            self._pausing.append(trial)
            self._note_missing_checkpoint(trial)
        return not is_paused

    def _decide(self, trial: Trial) -> None:
        """Decide whether a trial goes on from the rungs that it has reached since the last time."""
        for rung, step, values in self._undecided.pop(trial.number, ()):
            self._study.report(trial.configuration, rung - 1, *values)
            self._reach(trial, rung, *values)
            why = {trial.number: "paused" if self._rule.is_paused(trial.number) else None}
            event = reports_event([(trial, step, rung - 1, values)], True, why)
            self._opened.journal.write([event])

    def _reach(self, trial: Trial, rung: int, *values: float) -> None:
        self._rule.reach(trial.number, *values)
        self._study.reach(self._params.get(trial.number, trial.params), rung, *values)

    def why_stopped(self, trial: Trial) -> str | None:
        """Return why a paused trial with several metrics did not go on, for its note."""
        has_paused = trial.state == TrialState.PAUSED
        return self._rule.why(trial.number) if has_paused and len(self._metrics) > 1 else None

    def _note_missing_checkpoint(self, trial: Trial) -> None:
        if self._has_checkpoints:
            return
        self._has_checkpoints = True
        if checkpoints.newest(trial.path) is None:
            self._notify(
                f"Note: trial {trial.number} pauses without a checkpoint, so that it begins again "
                "when it goes on. Call context.report(..., checkpoint=folder) or use "
                "sparkdl.keras.Checkpoint, and begin with context.get_checkpoint()."
            )

    def is_paused(self, trial: Trial) -> bool:
        """Return True if a trial waits at a rung."""
        return self._rule.is_paused(trial.number)

    def take_dropped(self) -> list[Trial]:
        """Return the paused trials that never go on; each is returned once."""
        trials = [self._opened.run.trials[number] for number in self._rule.trials_to_drop()]
        dropped = [trial for trial in trials if trial.state == TrialState.PAUSED]
        self.drop(dropped)
        return dropped

    def drop(self, trials: Sequence[Trial]) -> None:
        """Let paused trials never go on."""
        for trial in trials:
            self._rule.end(trial.number)

    def restarted(self, trial: Trial, failure: str) -> None:
        """Decide about the rung at which the process of a trial was lost before it asked."""
        super().restarted(trial, failure)
        self._decide(trial)
        if self._rule.is_paused(trial.number):
            self._pausing.append(trial)

    def observe_end(self, trial: Trial) -> None:
        """Take note of the end of a trial, and of a rung about which it never asked."""
        if trial.state == TrialState.COMPLETE:
            self._decide(trial)
        self._undecided.pop(trial.number, None)
        self._rule.end(trial.number, _has_failed(trial))
        self._counts.forget(trial.configuration)
        super().observe_end(trial)


def _has_failed(trial: Trial) -> bool:
    """Return True if an ended trial leaves its places at the rungs to others."""
    return trial.state not in (TrialState.COMPLETE, TrialState.PRUNED)


def _change_of(trial: Trial, state: TrialState) -> TrialChanged:
    return TrialChanged(number=trial.number, state=state)
