"""Runs on the driver. Where the trials of a run come from: those it was given, or a study's."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sparkdl.runs import Run, Trial
from sparkdl.runs.events import (
    AttributesStored,
    Event,
    ParameterSuggested,
    ReportsReceived,
    TrialChanged,
)
from sparkdl.runs.journal import read_journal
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.redact import mask_params
from sparkdl.runs.states import Failure, TrialState
from sparkdl.search.settings import Search
from sparkdl.search.space.grid import plain
from sparkdl.search.study import Study, Told
from sparkdl.search.trial_source import Refused, Source

__all__ = ["Proposals"]

# Of a trial that reports each batch, the last of a look are enough: all are in its own file.
MOST_HEARD = 20


class Proposals(Source):
    """Trials as a study proposes them, each when there is a slot for it.

    Args:
        opened: the run, new or continued.
        search: what was asked for.
        study: not told of anything yet.
        say: shows the person a line.
    """

    def __init__(
        self,
        opened: OpenRun,
        search: Search,
        study: Study,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._opened, self._search, self._study = opened, search, study
        self._objectives = opened.run.directions
        self._members: dict[int, list[Trial]] = {}
        for trial in opened.run.trials:
            self._members.setdefault(trial.configuration, []).append(trial)
        self._params: dict[int, dict[str, Any]] = {}
        self._stopped: set[int] = set()
        self._say, self._heard = say, False
        self._count = search.count
        self.asks = search.space is None
        self.prunes = study.prunes
        self._restore()
        self._study.plan(len(self._members))

    @classmethod
    def of(
        cls, opened: OpenRun, search: Search, learn_from: Sequence[Run], say: Callable[[str], None]
    ) -> "Proposals":
        """With a study of its own.

        Args:
            opened, search: see above.
            learn_from: runs whose finished trials the study is told of first.
            say: shows the person a line.
        """
        made = opened.run.num_configurations
        # A sampler that goes on must not begin with the values that it drew before.
        seed, name = opened.seed + made, f"sparkdl-{opened.seed}"
        study = Study(search, opened.run.directions, seed, name)
        for run in learn_from:
            count = study.learn(run.trials, _metric_of(run))
            say(f"Learnt from {count} of the {len(run.trials)} trials of run {run.id}")
        return cls(opened, search, study, say)

    # ---- what was before

    def _restore(self) -> None:
        told = _told(read_journal(self._opened.paths.journal))
        for configuration, members in sorted(self._members.items()):
            first, state = members[0], self._state_of(members)
            known = told.get(first.number, Told())
            if state.is_final:
                self._study.add(first.params, state, self._values_of(members), known)
            else:
                self._study.again(configuration, first.params, known)

    # ---- new trials

    @property
    def left(self) -> float:
        """How many trials may still come."""
        repeats = self._search.repeats
        if self._study.is_exhausted:
            return 0
        if self._count is None:
            return float("inf")
        missing = 0 if self._is_whole(self._newest) else repeats - len(self._newest)
        return missing + max(0, self._count - len(self._members)) * repeats

    @property
    def _newest(self) -> list[Trial]:
        """The trials of the newest configuration; only that one may lack repeats."""
        return self._members.get(len(self._members) - 1, [])

    def _is_whole(self, members: Sequence[Trial]) -> bool:
        """Whether a configuration has all the trials that it will have."""
        first = members[0] if members else None
        stopped = first and (first.number in self._stopped or first.state == TrialState.PRUNED)
        return len(members) in (0, self._search.repeats) or bool(stopped)

    def next(self) -> Trial:
        """One more trial."""
        if not self._is_whole(self._newest):
            first = self._newest[0]
            return self._add(
                first.configuration, dict(self._params.get(first.number, first.params))
            )
        configuration = len(self._members)
        params = self._study.ask(configuration)
        suggested = self._study.suggested(configuration) if callable(self._search.space) else {}
        for name, (_, kept) in suggested.items():
            self._check_no_secret(name, kept)
        return self._add(configuration, params, suggested)

    def _add(
        self,
        configuration: int,
        params: dict[str, Any],
        suggested: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
    ) -> Trial:
        trial = self._opened.add(params, configuration, suggested)
        self._params[trial.number] = params
        self._members.setdefault(configuration, []).append(trial)
        return trial

    def params_of(self, trial: Trial) -> dict[str, Any]:
        """What the function is called with: nothing is masked, as it is where it is kept."""
        return {} if self.asks else self._params.get(trial.number, trial.params)

    def _check_no_secret(self, name: str, distribution: str) -> None:
        choices = {name: json.loads(distribution)["attributes"].get("choices", [])}
        if mask_params(choices, self._opened.secrets) != choices:
            raise Refused(
                f"the choices of {name!r} look like credentials, which are not kept, so that the "
                "search could not be resumed. Search over names of them."
            )

    # ---- what they say

    def saw(
        self, reports: Sequence[tuple[Trial, int, Mapping[str, float]]], ended: bool = False
    ) -> list[Trial]:
        """Hear what was reported, in this order; the trials that are to be stopped."""
        if not self.prunes:
            return []
        metric, stopped = next(iter(self._objectives)), []
        heard: list[tuple[int, int, float]] = []
        # The first repeat stands for its configuration; one that is to stop has said enough.
        own = [(t, step, m.get(metric, m.get("value"))) for t, step, m in reports]
        said = [(t, step, v) for t, step, v in own if v is not None and self._stands(t)]
        # One that asks for a verdict wants it of all that it reported.
        for trial, step, value in said if self.asks else _newest(said):
            if trial.number in self._stopped:
                continue
            heard.append((trial.number, step, value))
            self._study.report(trial.configuration, step, value)
            # An objective that asks is pruned when it asks; what has ended is not.
            if not self.asks and not ended and self._study.should_prune(trial.configuration):
                self._stopped.add(trial.number)
                stopped.append(trial)
        if heard:
            self._heard = True
            self._opened.journal.write([ReportsReceived(reports=heard)])
        return [m for t in stopped for m in self._members[t.configuration]]

    def _stands(self, trial: Trial) -> bool:
        return trial is self._members[trial.configuration][0]

    def answer(self, trial: Trial, asked: Mapping[str, Any]) -> Any:
        """What an objective asked for: a parameter's value, or whether it should be pruned.

        Raises:
            Refused: it cannot be asked for so.
        """
        if "should_prune" in asked:
            return self._study.should_prune(trial.configuration)
        if "constraint" in asked:
            return self._study.constrain(trial.configuration, asked["constraint"], asked["of"])
        name, kept = asked["suggest"], asked["distribution"]
        self._check_no_secret(name, kept)
        value = plain(name, self._study.suggest(trial.configuration, name, kept))
        if name not in trial.params:
            event = ParameterSuggested(
                number=trial.number, name=name, value=value, distribution=kept
            )
            self._opened.record(event)
        return value

    def again(self, trial: Trial, failure: str) -> None:
        """Hear that a trial begins again."""
        # After a lost executor it goes on; after a crash what it reported counts no more.
        if failure != Failure.LOST and self._stands(trial):
            self._study.restart(trial.configuration)

    def ended(self, trial: Trial) -> None:
        """Tell the study, when all repeats of a configuration have ended."""
        if self.prunes and not self._heard and trial.metrics:
            self._heard = True  # Said once.
            metric, has = next(iter(self._objectives)), ", ".join(trial.metrics)
            self._say(
                f"Note: the pruner has heard nothing of {metric!r} from trial {trial.number}, "
                f"which has {has}. Report it by context.report, or name another with metric=."
            )
        members = self._members[trial.configuration]
        state = self._state_of(members)
        if state.is_final:
            attrs = self._study.tell(trial.configuration, state, self._values_of(members))
            if attrs:
                event = AttributesStored(number=members[0].number, attrs=attrs)
                self._opened.journal.write([event])

    def _state_of(self, members: Sequence[Trial]) -> TrialState:
        states = [member.state for member in members]
        if not all(state.is_final for state in states) or not self._is_whole(members):
            return TrialState.WAITING
        # The first stands for its configuration before the pruner.
        if states[0] == TrialState.PRUNED or TrialState.COMPLETE not in states:
            return states[0]
        return TrialState.COMPLETE

    def _values_of(self, members: Sequence[Trial]) -> list[float] | None:
        """The means of the metrics over those that are COMPLETE."""
        complete = [trial for trial in members if trial.state == TrialState.COMPLETE]
        if not complete:
            return None
        read = _metric_of(self._opened.run)
        rows = [[read(trial, name) for name in self._objectives] for trial in complete]
        return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _told(events: Sequence[Event]) -> dict[int, Told]:
    """What a journal knows of the trials that a study was told of, by number."""
    found: dict[int, Told] = {}
    for event in events:
        match event:
            case ReportsReceived():
                for number, step, value in event.reports:
                    found.setdefault(number, Told()).reports.setdefault(step, value)
            case ParameterSuggested():
                suggested = found.setdefault(event.number, Told()).suggested
                suggested[event.name] = (event.value, event.distribution)
            case AttributesStored():
                found.setdefault(event.number, Told()).attrs.update(event.attrs)
            case TrialChanged(state=TrialState.WAITING):
                # It failed and begins again: what it reported counts no more.
                if event.failure not in (None, Failure.LOST):
                    found.get(event.number, Told()).reports.clear()
    return found


def _newest(said: list[tuple[Trial, int, Any]]) -> list[tuple[Trial, int, Any]]:
    """Of each trial the last reports only: some report each batch, and a study is slow."""
    counts: Counter[int] = Counter()
    kept = []
    for one in reversed(said):
        counts[one[0].number] += 1
        if counts[one[0].number] <= MOST_HEARD:
            kept.append(one)
    return kept[::-1]


def _metric_of(run: Run) -> Any:
    def read(trial: Trial, name: str) -> float | None:
        return trial.value if name in (run.metric, "value") else trial.metrics.get(name)

    return read
