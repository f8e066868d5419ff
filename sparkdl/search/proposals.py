"""Where it runs: D. Where the trials of a run come from: those it was given, or a study's."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna.distributions import distribution_to_json, json_to_distribution

from sparkdl.runs import Run, Trial
from sparkdl.runs.journal import read_journal
from sparkdl.runs.redact import mask_params
from sparkdl.runs.start import OpenRun
from sparkdl.runs.states import TrialState
from sparkdl.search.adaptive import Search
from sparkdl.search.grid import plain
from sparkdl.search.source import Source
from sparkdl.search.study import Study, Told

__all__ = ["Proposals"]


class Proposals(Source):
    """Trials as a study proposes them, each when there is a slot for it.

    Args:
        opened: the run, new or continued.
        search: what was asked for.
        study: not told of anything yet.
    """

    def __init__(self, opened: OpenRun, search: Search, study: Study) -> None:
        self._opened, self._search, self._study = opened, search, study
        self._objectives = _objectives(opened.run)
        self._members: dict[int, list[Trial]] = {}
        for trial in opened.run.trials:
            self._members.setdefault(trial.configuration, []).append(trial)
        self._params: dict[int, dict[str, Any]] = {}
        self._stopped: set[int] = set()
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
        made = len({trial.configuration for trial in opened.run.trials})
        # A sampler that goes on must not begin with the values that it drew before.
        seed, name = opened.seed + made, f"sparkdl-{opened.seed}"
        study = Study(search, _objectives(opened.run), seed, name)
        for run in learn_from:
            count = study.learn(run.trials, _metric_of(run))
            say(f"Learnt from {count} of the {len(run.trials)} trials of run {run.id}")
        return cls(opened, search, study)

    # ---- what was before

    def _restore(self) -> None:
        if not self._members:
            return
        reports: dict[int, dict[int, float]] = {}
        suggested: dict[int, dict[str, tuple[Any, str]]] = {}
        for event in read_journal(self._opened.paths.journal):
            if event["event"] == "reports":
                for number, step, value in event["reports"]:
                    reports.setdefault(number, {}).setdefault(step, value)
            elif event["event"] == "suggested":
                asked = (event["value"], event["distribution"])
                suggested.setdefault(event["number"], {})[event["name"]] = asked
        for configuration, members in sorted(self._members.items()):
            first = members[0]
            said = reports.get(first.number, {}), suggested.get(first.number, {})
            state, values = self._state_of(members), self._values_of(members)
            self._study.restore(configuration, Told(first.params, state, values, *said))

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
        trial = self._add(configuration, params)
        if callable(self._search.space):
            for name, (value, kept) in self._study.suggested(configuration).items():
                self._check_no_secret(name, kept)
                self._record_suggested(trial, name, value, kept)
        return trial

    def _add(self, configuration: int, params: dict[str, Any]) -> Trial:
        trial = self._opened.add(params, configuration)
        self._params[trial.number] = params
        self._members.setdefault(configuration, []).append(trial)
        return trial

    def params_of(self, trial: Trial) -> dict[str, Any]:
        """What the function is called with: nothing is masked, as it is where it is kept."""
        return {} if self.asks else self._params.get(trial.number, trial.params)

    def _check_no_secret(self, name: str, distribution: str) -> None:
        choices = {name: json.loads(distribution)["attributes"].get("choices", [])}
        if mask_params(choices, self._opened.secrets) != choices:
            raise ValueError(
                f"the choices of {name!r} look like credentials, which are not kept, so that the "
                "search could not be resumed. Search over names of them."
            )

    def _record_suggested(self, trial: Trial, name: str, value: Any, kept: str) -> None:
        event = {"event": "suggested", "number": trial.number, "name": name, "value": value}
        self._opened.journal.write([{**event, "distribution": kept}])

    # ---- what they say

    def saw(self, reports: Sequence[tuple[Trial, int, Mapping[str, float]]]) -> list[Trial]:
        """Hear what was reported, in this order; the trials that are to be stopped."""
        if not self.prunes:
            return []
        metric, heard, stopped = next(iter(self._objectives)), [], []
        for trial, step, metrics in reports:
            value = metrics.get(metric, metrics.get("value"))
            # The first repeat stands for its configuration.
            if value is None or trial is not self._members[trial.configuration][0]:
                continue
            heard.append([trial.number, step, value])
            self._study.report(trial.configuration, step, value)
            # An objective that asks is pruned when it asks.
            if not self.asks and self._study.should_prune(trial.configuration):
                stopped.append(trial)
        if heard:
            self._opened.journal.write([{"event": "reports", "reports": heard}])
        self._stopped.update(trial.number for trial in stopped)
        return [m for t in stopped for m in self._members[t.configuration]]

    def answer(self, trial: Trial, asked: Mapping[str, Any]) -> Any:
        """What an objective asked for: a parameter's value, or whether it should be pruned.

        Raises:
            ValueError: Optuna refuses it.
        """
        if "should_prune" in asked:
            return self._study.should_prune(trial.configuration)
        if "constraint" in asked:
            return self._study.constrain(trial.configuration, asked["constraint"], asked["of"])
        name, distribution = asked["suggest"], json_to_distribution(asked["distribution"])
        self._check_no_secret(name, asked["distribution"])
        value = plain(name, self._study.suggest(trial.configuration, name, distribution))
        if name not in trial.params:
            trial.params[name] = value
            self._record_suggested(trial, name, value, distribution_to_json(distribution))
        return value

    def ended(self, trial: Trial) -> None:
        """Tell the study, when all repeats of a configuration have ended."""
        members = self._members[trial.configuration]
        state = self._state_of(members)
        if state.is_final:
            self._study.tell(trial.configuration, state, self._values_of(members))

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


def _objectives(run: Run) -> dict[str, str]:
    return run.objectives or {run.metric or "value": run.direction}


def _metric_of(run: Run) -> Any:
    def read(trial: Trial, name: str) -> float | None:
        return trial.value if name in (run.metric, "value") else trial.metrics.get(name)

    return read
