"""Runs on the driver. A run as a person sees it, live or read from disk."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import pandas as pd

from sparkdl.errors import (
    AllTrialsFailedError,
    NoCompleteTrialError,
    TrainingFailedError,
    TrialFailedError,
)
from sparkdl.runs import ranking, table
from sparkdl.runs.journal import Event
from sparkdl.runs.layout import RunPaths, TrialPaths
from sparkdl.runs.states import RunState, TrialState
from sparkdl.runs.trial import Trial, Usage

__all__ = ["Handle", "Run"]

_TRACEBACK = "Traceback (most recent call last)"


class Handle(Protocol):
    """What a live run can be told; implemented by whatever executes it."""

    def wait(self) -> None:
        """Return when the run has ended."""

    def cancel(self, number: int | None) -> None:
        """End one trial, or with None the run."""


@dataclass(repr=False)
class Run:
    """One call of a verb: its trials and what came out.

    `print(run)` shows a table; a notebook shows it as HTML.

    Attributes:
        id, path, name, kind: its directory's name and place, what it is called, and the verb.
        metric, direction: the number that counts, and which of its values are better.
        objectives: of a search with several, the direction of each metric; `metric` is the first.
        state, reason: see `RunState`, and why it ended early.
        trials: in the order in which they were made.
        duration_s: seconds from its start to its end.
        idle: in a sentence, how much of the slots' time no trial used.
        timeline: of a run with `timeline=True`, in a sentence, where the time of a step went.
        is_search: a search made the trials, rather than a list of parameters.
        is_distributed: the run is one trial of a distributed verb.
    """

    id: str
    path: str
    name: str
    kind: str
    metric: str | None = None
    direction: Literal["max", "min"] = "max"
    objectives: dict[str, str] = field(default_factory=dict)
    state: RunState = RunState.RUNNING
    reason: str | None = None
    trials: list[Trial] = field(default_factory=list)
    duration_s: float = 0.0
    idle: str | None = None
    timeline: str | None = None
    is_search: bool = False
    is_distributed: bool = False
    _handle: Handle | None = field(default=None, repr=False, compare=False)
    _started: float | None = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> Trial:
        """The COMPLETE trial with the best value; with `repeats=`, of the best configuration.

        Raises:
            NoCompleteTrialError: no trial is COMPLETE with a value, or there are several metrics.
        """
        if len(self.objectives) > 1:
            raise NoCompleteTrialError(
                f"run {self.id} has the metrics {', '.join(self.objectives)}, and no trial is the "
                "best in all of them. Choose among run.pareto."
            )
        best = self.top(1)
        if not best:
            raise NoCompleteTrialError(
                f"run {self.id} has no COMPLETE trial with a value: {self.counts_text()}. Did a "
                "pruner stop all, or does metric= name no number? Look at print(run), run.failed "
                f"or {self.path}."
            )
        return best[0]

    def top(self, n: int) -> list[Trial]:
        """The `n` best COMPLETE trials, best first; among equals the earlier trial.

        With `repeats=` the trials of the configuration with the best mean come first.
        """
        return ranking.ranked(self.trials, self.direction)[:n]

    @property
    def pareto(self) -> list[Trial]:
        """The COMPLETE trials that no other beats in one metric and equals in the rest."""
        return ranking.pareto(self.trials, self.objectives) if self.objectives else self.top(1)

    def means(self) -> dict[int, tuple[float, float]]:
        """Of each configuration, the mean of its COMPLETE trials and their standard deviation."""
        return ranking.means(self.trials)

    @property
    def directions(self) -> dict[str, str]:
        """The direction of each metric, of a single one too."""
        return self.objectives or {self.metric or "value": self.direction}

    @property
    def num_configurations(self) -> int:
        """How many there are: with `repeats=` less than trials."""
        return len({trial.configuration for trial in self.trials})

    @property
    def failed(self) -> list[Trial]:
        """The trials whose training function raised or whose process died."""
        return [trial for trial in self.trials if trial.state == TrialState.FAILED]

    @property
    def result(self) -> Any:
        """What the training function of a run of one trial returned."""
        outputs = self.trials[0].outputs if len(self.trials) == 1 else {}
        return outputs["value"] if list(outputs) == ["value"] else (outputs or None)

    @property
    def usage(self) -> Usage:
        """The trials' usage summed up; the memory is the largest of them."""
        used = [asdict(trial.usage) for trial in self.trials]
        sums = {key: sum(one[key] for one in used) for key in asdict(Usage())}
        peak = max((one["peak_memory_mb"] for one in used), default=0.0)
        return Usage(**{**sums, "peak_memory_mb": peak})

    def counts(self) -> dict[str, int]:
        """How many trials there are in each state that occurs."""
        states = [trial.state for trial in self.trials]
        return {str(state): states.count(state) for state in TrialState if state in states}

    def counts_text(self) -> str:
        """The counts in words, such as `5 of 6 trials complete, 1 failed`."""
        counts = self.counts()
        complete = f"{counts.pop('COMPLETE', 0)} of {len(self.trials)} trials complete"
        return ", ".join([complete, *(f"{n} {state.lower()}" for state, n in counts.items())])

    def to_pandas(self) -> pd.DataFrame:
        """One row per trial: its state, parameters, value, outputs and usage."""
        return table.frame(self.trials)

    def raise_for_failures(self) -> None:
        """Raise the first failed trial's error, if any trial failed.

        Raises:
            TrialFailedError: its cause is the person's own exception where this driver ran it.
        """
        if self.failed:
            first = self.failed[0]
            raise TrialFailedError(
                f"{len(self.failed)} of {len(self.trials)} trials of run {self.id} failed. "
                f"Trial {first.number} {first.params}: {first.summary}\n"
                f"Its log is {_log_of(first)}"
            ) from first.exception

    def raise_if_none_completed(self) -> None:
        """Raise the first failure of a run that is FAILED and has no COMPLETE trial.

        Raises:
            AllTrialsFailedError: its cause is the first trial's own exception.
            TrainingFailedError: the same of a run with a distributed verb.
        """
        bad = [t for t in self.trials if t.state in (TrialState.FAILED, TrialState.INVALID)]
        if self.state != RunState.FAILED or self.counts().get("COMPLETE") or not bad:
            return
        first = next((trial for trial in bad if trial.exception), bad[0])
        if self.is_distributed:
            raise TrainingFailedError(
                f"{self.kind} {self.id} failed. {_without_traceback(first.error or '')}\n"
                f"Everything is in {self.path}"
            ) from first.exception
        raise AllTrialsFailedError(
            f"no trial of run {self.id} completed: {self.counts_text()}. "
            f"Trial {first.number} with {first.params}: {first.summary}\n"
            f"Its log is {_log_of(first)}, everything is in {self.path}"
        ) from first.exception

    def attach(self, handle: Handle) -> None:
        """Name what executes this run, so that it can be waited for and cancelled."""
        self._handle = handle

    def wait(self) -> "Run":
        """Return this run when it has ended; at once where nothing of it runs here."""
        if self._handle:
            self._handle.wait()
        return self

    def cancel(self, trial: "Trial | int | None" = None) -> None:
        """End one trial, or the whole run; what has finished stays."""
        if self._handle:
            self._handle.cancel(trial.number if isinstance(trial, Trial) else trial)

    def apply(self, event: Event) -> None:
        """Take over what a journal event says."""
        handlers: dict[str, Callable[[Event], None]] = {
            "start": self._apply_start,
            "trials": self._apply_trials,
            "trial": lambda e: self.trials[e["number"]].apply(e),
            "suggested": self._apply_suggested,
            "end": self._apply_end,
        }
        if event["event"] in handlers:  # Others say what a search saw.
            handlers[event["event"]](event)

    def _apply_start(self, event: Event) -> None:
        self.state, self.reason = RunState.RUNNING, None
        self._started = event.get("time", self._started)

    def _apply_trials(self, event: Event) -> None:
        paths = RunPaths(self.path)
        for new in event["trials"]:
            path = paths.trial(new["number"]).folder
            configuration = new.get("configuration", new["number"])
            self.trials.append(
                Trial(new["number"], new["params"], path, new["seed"], configuration)
            )

    def _apply_suggested(self, event: Event) -> None:
        self.trials[event["number"]].params[event["name"]] = event["value"]

    def _apply_end(self, event: Event) -> None:
        self.state, self.reason = RunState(event["state"]), event.get("reason")
        self.duration_s, self.idle = event.get("duration_s", 0.0), event.get("idle")
        self.timeline = event.get("timeline")

    def _view(self) -> table.View:
        why = f" ({self.reason})" if self.reason else ""
        seconds = f" in {self.duration_s:.1f} s" if self.duration_s else ""
        headline = f"Run {self.id}: {self.state}{why}, {self.counts_text()}{seconds}"
        ranked = self.top(len(self.trials))
        means = self.means()
        return table.View(
            headline,
            self.trials,
            ranked,
            self.metric or "value",
            self.path,
            others=list(self.objectives)[1:],
            means=means if self.num_configurations < len(self.trials) else {},
            pareto=self.pareto if len(self.objectives) > 1 else [],
        )

    def plot(self, what: str | None = None) -> Any:
        """A figure of plotly's, which a notebook shows.

        Args:
            what: `history`, `parallel`, `importance`, `curves`, `timeline` or `pareto`; by default
                what shows this run best.
        """
        from sparkdl.runs.figures import plot  # Plotly takes a second to import.

        return plot(self, what)

    def report(self) -> str:
        """Write `report.html` into the run directory, a page that needs no network; its path."""
        from sparkdl.runs.report import write_report

        return write_report(self)

    def __repr__(self) -> str:
        return f"<{self._view().headline}>"

    def __str__(self) -> str:
        return table.text(self._view())

    def _repr_html_(self) -> str:
        return table.html(self._view())


def _without_traceback(error: str) -> str:
    """What a rank's error says beside its traceback, which its cause shows: what, and its log."""
    paragraphs = error.strip().split("\n\n")
    return "\n".join(p.strip() for p in paragraphs if not p.startswith(_TRACEBACK))


def _log_of(trial: Trial) -> str:
    """The log that its error names: of a gang, the failing rank's."""
    found = re.search(r"^Its log: (.*)$", trial.error or "", re.MULTILINE)
    return found[1] if found else TrialPaths(trial.path).log
