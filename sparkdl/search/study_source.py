"""Runs on the driver. Supply the trial loop with trials that a study proposes."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sparkdl.runs import Run, Trial
from sparkdl.runs.commands import enqueued_params
from sparkdl.runs.events import (
    AttributesStored,
    CommandHandled,
    Event,
    ParameterSuggested,
    ReportsReceived,
    StopRequested,
)
from sparkdl.runs.journal import read_journal
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.states import Failure, TrialState
from sparkdl.search.pruner_notes import PrunerNotes
from sparkdl.search.pruners import NamedPruner, ReportNumbers
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.grid import to_json_value
from sparkdl.search.study import Study
from sparkdl.search.trial_records import (
    TrialRecord,
    read_records,
    reports_event,
    stopped_trials,
    untold_trials,
)
from sparkdl.search.trial_source import RequestRefused, TrialSource
from sparkdl.search.whole_reports import Values, WholeReports, newest
from sparkdl.secrets.masks import mask_params


class StudySource(TrialSource):
    """A source that asks a study for a configuration whenever a slot is free.

    Args:
        opened: the run, new or resumed.
        search: the settings of the search.
        study: a study without trials.
        notify: shows a line to the user.
    """

    def __init__(
        self,
        opened: OpenRun,
        search: SearchSettings,
        study: Study,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._opened = opened
        self._search = search
        self._study = study
        self._notify = notify
        self._metrics = list(opened.run.directions)
        self._members: dict[int, list[Trial]] = {}
        for trial in opened.run.trials:
            self._members.setdefault(trial.configuration, []).append(trial)
        self._params: dict[int, dict[str, Any]] = {}
        self._stopped_trials: set[int] = set()
        # The trials of an objective whose next question about its last report is answered by yes,
        # and those whose question was.
        self._condemned, self._answered = set[int](), set[int]()
        self._notes = PrunerNotes(search.pruner, self._metrics, notify)
        self._whole = WholeReports(self._metrics)
        is_named = isinstance(search.pruner, str | Mapping)
        self._pruner = NamedPruner.of(search.pruner) if is_named else None
        self._numbers = ReportNumbers()
        self._num_trials = search.num_trials
        self._num_enqueued = 0
        self._is_objective = self.answers_requests = search.space is None
        self.prunes = study.prunes
        self._restore()
        self._study.queue_initial(len(self._members) - self._num_enqueued)

    @classmethod
    def create(
        cls,
        opened: OpenRun,
        search: SearchSettings,
        learn_from: Sequence[Run],
        notify: Callable[[str], None],
    ) -> "StudySource":
        """Create a source with a new study.

        Args:
            opened: the run, new or resumed.
            search: the settings of the search.
            learn_from: runs whose complete trials are added to the study first.
            notify: shows a line to the user.
        """
        # A sampler must not draw the same values again after a resume, so the seed depends on the
        # number of configurations that the run already has.
        seed = opened.seed + opened.run.num_configurations
        study = Study(search, opened.run.directions, seed, f"sparkdl-{opened.seed}")
        for run in learn_from:
            num_added = study.learn(run.trials, _metric_reader(run))
            notify(f"Learned from {num_added} of the {len(run.trials)} trials of run {run.id}")
        source = cls(opened, search, study, notify)
        if search.num_points is not None and (search.num_trials or 0) > search.num_points:
            notify(
                f"Note: the space has {search.num_points} points, fewer than num_trials="
                f"{search.num_trials}. Each is tried once, and the search ends with the last one."
            )
        return source

    # ---- trials of earlier drivers

    def _restore(self) -> None:
        events = read_journal(self._opened.paths.journal)
        enqueued, records = enqueued_params(events), read_records(events)
        self._num_enqueued = len(enqueued)
        stopped = stopped_trials(events) if self.prunes else set()
        untold = untold_trials(events)
        reports = [event.reports for event in events if isinstance(event, ReportsReceived)]
        last = {number for number, _, _ in reports[-1]} if reports else set()
        unfinished: list[Trial] = []
        for configuration, members in sorted(self._members.items()):
            first = members[0]
            state = self._state_of(members)
            record = records.get(first.number, TrialRecord())
            if state.is_final and all(member.number not in untold for member in members):
                values = self._values_of(members)
                self._study.add_finished(first.params, state, values, record, configuration)
                continue
            user_params = enqueued.get(first.number, {})
            is_stopped = self._study.resume(configuration, first.params, record, user_params)
            if state.is_final:
                self._tell(configuration, state)
                continue
            # The earlier driver may have ended between a report and what follows from it.
            if is_stopped and first.number in last:
                (self._condemned if self._is_objective else stopped).add(first.number)
            for step, number in record.last:
                self._numbers.restore(configuration, step, number)
            if not is_stopped and first.failure in (None, Failure.LOST):
                unfinished.append(first)
        if len(self._metrics) > 1 and self.prunes:
            # What these trials have reported, and the earlier driver has not heard.
            rest = [(trial, *report) for trial in unfinished for report in trial.reports()]
            stopped |= {member.number for member in self.observe_reports(rest)}
        self.stopped = stopped

    # ---- new trials

    @property
    def num_left(self) -> float:
        """The largest number of trials that the source can still create."""
        repeats = self._search.repeats
        if self._study.is_exhausted:
            return 0
        most = self._max_configurations
        if most is None:
            return float("inf")
        missing = 0 if self._has_all_repeats(self._newest) else repeats - len(self._newest)
        return missing + max(0, most - len(self._members)) * repeats

    @property
    def _max_configurations(self) -> int | None:
        """The largest number of configurations, those that the user has enqueued included."""
        untried = self._study.num_untried
        limits = [self._num_trials, None if untried is None else len(self._members) + untried]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def _newest(self) -> list[Trial]:
        """The trials of the newest configuration, the only one that may lack repeats."""
        return self._members.get(len(self._members) - 1, [])

    def _has_all_repeats(self, members: Sequence[Trial]) -> bool:
        """Return True if the source will create no more trials of a configuration."""
        first = members[0] if members else None
        stopped = first and (
            first.number in self._stopped_trials or first.state == TrialState.PRUNED
        )
        return len(members) in (0, self._search.repeats) or bool(stopped)

    def next(self) -> Trial:
        """Create one more trial."""
        if not self._has_all_repeats(self._newest):
            first = self._newest[0]
            params = dict(self._params.get(first.number, first.params))
            return self._add(first.configuration, params)[0]
        configuration = len(self._members)
        return self._add(configuration, *self._ask(configuration))[0]

    def _ask(
        self, configuration: int, user_params: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, tuple[Any, str]]]:
        """Return the parameters of a new configuration, and the values that a function suggested.

        Args:
            configuration: the number of the configuration.
            user_params: parameters that the user has chosen; None for none.
        """
        params = self._study.ask(configuration, user_params)
        suggested = self._study.suggested(configuration) if callable(self._search.space) else {}
        for name, (_, distribution) in suggested.items():
            self._check_no_secret(name, distribution)
        return params, suggested

    def limit(self, num_trials: int) -> None:
        """Create trials of this number of configurations in all."""
        self._num_trials = num_trials

    def enqueue(
        self, params: Mapping[str, Any], event: CommandHandled
    ) -> tuple[list[Trial], CommandHandled]:
        """Create a configuration, with all its repeats, with parameters that the user has chosen.

        Raises:
            RequestRefused: if the parameters are invalid.
        """
        configuration = len(self._members)
        # First what may be refused: a trial that is created here and not returned never runs.
        params_and_suggestions = self._ask(configuration, params)
        before = []
        while not self._has_all_repeats(self._newest):  # Only the newest may lack repeats.
            before.append(self.next())
        event = replace(event, number=len(self._opened.run.trials))
        trials = self._add(configuration, *params_and_suggestions, self._search.repeats, [event])
        self._num_enqueued += 1
        if self._num_trials is not None:
            self._num_trials += 1
        return before + trials, event

    def _add(
        self,
        configuration: int,
        params: dict[str, Any],
        suggested: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
        count: int = 1,
        also: Sequence[Event] = (),
    ) -> list[Trial]:
        trials = self._opened.add_repeats(params, configuration, suggested, count, also)
        for trial in trials:
            self._params[trial.number] = params
        self._members.setdefault(configuration, []).extend(trials)
        return trials

    def params_of(self, trial: Trial) -> dict[str, Any]:
        """Return the arguments of the training function; credentials in them are not masked."""
        return {} if self._is_objective else self._params.get(trial.number, trial.params)

    def _check_no_secret(self, name: str, distribution: str) -> None:
        choices = {name: json.loads(distribution)["attributes"].get("choices", [])}
        if mask_params(choices, self._opened.secrets) != choices:
            raise RequestRefused(
                f"the choices of {name!r} look like credentials. Credentials are not stored, so "
                "the search could not be resumed. Search over names of the credentials instead."
            )

    # ---- reports and requests of running trials

    def observe_reports(
        self, reports: Sequence[tuple[Trial, int, Mapping[str, float]]], are_over: bool = False
    ) -> list[Trial]:
        """Pass reports to the study, in this order, and return the trials to stop."""
        if not self.prunes:
            return []
        stopped: list[Trial] = []
        observed: list[tuple[Trial, int, int, tuple[float, ...]]] = []
        self._notes.on_reports(reports)
        for trial, step, values in self._for_study(self._reported_values(reports)):
            number = self._number_of(trial, step, values)
            if number is None or trial.number in self._stopped_trials:
                continue
            observed.append((trial, step, number, values))
            self._answered.discard(trial.number)  # An objective may go on.
            self._study.report(trial.configuration, number, *values)
            self._notes.on_report_to_pruner(trial, step)
            # An objective that calls should_prune() is pruned by that call.
            can_stop = not self._is_objective and not are_over
            if can_stop and self._study.should_prune(trial.configuration):
                self._notes.on_stop(trial)
                self._stopped_trials.add(trial.number)
                stopped.append(trial)
        if observed:
            why = {t.number: self._study.why_stopped(t.configuration) for t, *_ in observed}
            self._opened.journal.write([reports_event(observed, self._pruner is not None, why)])
        return [member for trial in stopped for member in self._members[trial.configuration]]

    def _for_study(self, values: list[Values]) -> list[Values]:
        """Return the values that the study may hear."""
        # An objective that calls should_prune() expects a verdict based on every value it has
        # reported, and a pruner that counts reports must count all of them.
        return values if self._is_objective or self._pruner else newest(values)

    def _number_of(self, trial: Trial, step: int, values: Sequence[float]) -> int | None:
        """Return the step under which the study hears values; None if it does not hear them."""
        if self._pruner is None:
            return step
        number = self._numbers.next(trial.configuration, step)
        if number is None or self._is_objective or not all(map(math.isfinite, values)):
            return number
        return number if self._pruner.hears(number) else None

    def _reported_values(
        self, reports: Sequence[tuple[Trial, int, Mapping[str, float]]]
    ) -> list[Values]:
        """Return the reports of all metrics, without those of further repeats."""
        found = []
        for trial, step, metrics in reports:
            values = self._whole.add(trial.number, step, metrics) if self._is_first(trial) else None
            if values is not None:
                found.append((trial, step, values))
        return found

    def _is_first(self, trial: Trial) -> bool:
        """Return True for the first repeat, which represents its configuration to the pruner."""
        return trial is self._members[trial.configuration][0]

    def answer(self, trial: Trial, request: Mapping[str, Any]) -> Any:
        """Return a parameter's value or a verdict of the pruner, or set a constraint.

        Raises:
            RequestRefused: if the request is invalid.
        """
        if "should_prune" in request:
            is_stopped = trial.number in self._condemned
            is_stopped = is_stopped or self._study.should_prune(trial.configuration)
            if is_stopped:
                self._condemned.discard(trial.number)
                self._answered.add(trial.number)
                self._notes.on_stop(trial)
                self._opened.journal.write([StopRequested(number=trial.number)])
            return is_stopped
        if "constraint" in request:
            return self._study.set_constraint(
                trial.configuration, request["constraint"], request["of"]
            )
        name, distribution = request["suggest"], request["distribution"]
        self._check_no_secret(name, distribution)
        value = to_json_value(name, self._study.suggest(trial.configuration, name, distribution))
        if name not in trial.params:
            event = ParameterSuggested(
                number=trial.number, name=name, value=value, distribution=distribution
            )
            self._opened.record(event)
        return value

    def why_stopped(self, trial: Trial) -> str | None:
        """Return why a trial with several metrics was stopped, for its note; None if it was not."""
        return self._study.why_stopped(trial.configuration)

    def restarted(self, trial: Trial, failure: str) -> None:
        """Discard the reports of a trial that starts from the beginning."""
        # After the loss of an executor the trial continues from its checkpoint.
        if failure == Failure.LOST:
            self._condemned |= self._answered & {trial.number}
        elif self._is_first(trial):
            self._study.restart(trial.configuration)
            self._numbers.forget(trial.configuration)

    def observe_end(self, trial: Trial) -> None:
        """Pass the result of a configuration to the study when all its repeats have ended."""
        self._notes.on_end(trial)
        self._whole.forget(trial.number)
        members = self._members[trial.configuration]
        state = self._state_of(members)
        if state.is_final:
            self._numbers.forget(trial.configuration)
            self._tell(trial.configuration, state)

    def _tell(self, configuration: int, state: TrialState) -> None:
        members = self._members[configuration]
        if attrs := self._study.tell(configuration, state, self._values_of(members)):
            event = AttributesStored(number=members[0].number, attrs=attrs)
            self._opened.journal.write([event])

    def _state_of(self, members: Sequence[Trial]) -> TrialState:
        states = [member.state for member in members]
        if not all(state.is_final for state in states) or not self._has_all_repeats(members):
            return TrialState.WAITING
        # The pruner judges a configuration by its first repeat.
        if states[0] == TrialState.PRUNED or set(states) == {TrialState.COMPLETE}:
            return states[0]
        # A configuration that has diverged with one seed is no result.
        return TrialState.FAILED

    def _values_of(self, members: Sequence[Trial]) -> list[float] | None:
        """Return the mean of each metric over the repeats; None unless all are COMPLETE."""
        if any(trial.state != TrialState.COMPLETE for trial in members):
            return None
        metric_of = _metric_reader(self._opened.run)
        rows = [[metric_of(trial, name) for name in self._metrics] for trial in members]
        return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _metric_reader(run: Run) -> Callable[[Trial, str], Any]:
    def read(trial: Trial, name: str) -> float | None:
        return trial.value if name in (run.metric, "value") else trial.metrics.get(name)

    return read
