"""Where it runs: D. A run and its trials, as a person sees them, live or read from disk."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import pandas as pd

from sparkdl import storage
from sparkdl.errors import NoCompleteTrialError, TrialFailedError
from sparkdl.runs import table
from sparkdl.runs.journal import Event
from sparkdl.runs.layout import RunPaths, TrialPaths
from sparkdl.runs.states import RunState, TrialState

__all__ = ["Run", "Trial", "Usage"]


@dataclass(frozen=True)
class Usage:
    """Where a trial's time went, and what it used.

    Attributes:
        queued_s: seconds from its submission to Spark until its task started.
        starting_s: seconds from there to the first line of the training function.
        running_s: seconds in the training function.
        cpu_s: CPU seconds of the training process and its children, user and system.
        peak_memory_mb: the largest resident size of the training process, in MiB.
    """

    queued_s: float = 0.0
    starting_s: float = 0.0
    running_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0


@dataclass
class Trial:
    """One parameter combination of a run.

    Attributes:
        number: its place in the run, from 0.
        params: the parameters; values that look like credentials are masked.
        path: its folder in the run directory.
        seed: what `random`, NumPy and the framework were seeded with.
        state: see `TrialState`; equal to its name.
        value: the metric's number, None unless COMPLETE.
        metrics: the last of each number reported or returned.
        outputs: what the training function returned, by name.
        error: what went wrong, its first line the summary.
        attempts: how often it was started; more than one after a lost executor.
        usage: where its time went.
        exception: the person's own exception, on the driver that ran it.
    """

    number: int
    params: dict[str, Any]
    path: str
    seed: int = 0
    state: TrialState = TrialState.WAITING
    value: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    attempts: int = 0
    usage: Usage = Usage()
    exception: BaseException | None = field(default=None, repr=False, compare=False)

    @property
    def duration_s(self) -> float:
        """Seconds from the start of its task to its end."""
        return self.usage.starting_s + self.usage.running_s

    @property
    def history(self) -> pd.DataFrame:
        """Everything reported, a row per step, a column per name."""
        try:
            text = storage.read(TrialPaths(self.path).metrics).decode()
        except FileNotFoundError:
            return pd.DataFrame()
        rows = [json.loads(line) for line in text.split("\n")[:-1]]
        frame = pd.DataFrame([{"step": row["step"], **row["metrics"]} for row in rows])
        return frame.groupby("step").last() if len(frame) else frame

    def apply(self, event: Event) -> None:
        """Take over what a journal event says of this trial."""
        self.state = TrialState(event["state"])
        self.attempts = event.get("attempt", self.attempts - 1) + 1
        self.value = event.get("value")
        self.metrics = event.get("metrics", self.metrics)
        self.outputs = event.get("outputs", self.outputs)
        self.error = event.get("error")
        self.usage = Usage(**event["usage"]) if "usage" in event else self.usage


class Handle(Protocol):
    """What a live run can be told; implemented by whatever executes it."""

    def wait(self) -> None:
        """Return when the run has ended."""

    def cancel(self, number: int | None) -> None:
        """End one trial, or with None the run."""


@dataclass
class Run:
    """One call of a verb: its trials and what came out.

    `print(run)` shows a table; a notebook shows it as HTML.
    """

    id: str
    path: str
    name: str
    kind: str
    metric: str | None = None
    direction: Literal["max", "min"] = "max"
    state: RunState = RunState.RUNNING
    reason: str | None = None
    trials: list[Trial] = field(default_factory=list)
    duration_s: float = 0.0
    _handle: Handle | None = field(default=None, repr=False, compare=False)
    _started: float | None = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> Trial:
        """The COMPLETE trial with the best value.

        Raises:
            NoCompleteTrialError: no trial is COMPLETE with a value.
        """
        best = self.top(1)
        if not best:
            raise NoCompleteTrialError(
                f"run {self.id} has no COMPLETE trial with a value: {self.counts_text()}. "
                f"Name the number that counts with metric=, and look at run.failed or {self.path}."
            )
        return best[0]

    def top(self, n: int) -> list[Trial]:
        """The `n` best COMPLETE trials, best first; among equals the earlier trial."""
        sign = -1.0 if self.direction == "max" else 1.0
        valued = [t for t in self.trials if t.state == "COMPLETE" and t.value is not None]
        return sorted(valued, key=lambda t: (sign * float(t.value or 0.0), t.number))[:n]

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
        """The counts in words, such as `5 COMPLETE, 1 FAILED`."""
        return ", ".join(f"{n} {state}" for state, n in self.counts().items()) or "no trials"

    def to_pandas(self) -> pd.DataFrame:
        """One row per trial: its state, parameters, value, outputs and usage."""
        return table.frame(self)

    def raise_for_failures(self) -> None:
        """Raise the first failed trial's error, if any trial failed.

        Raises:
            TrialFailedError: its cause is the person's own exception where this driver ran it.
        """
        if self.failed:
            first = self.failed[0]
            raise TrialFailedError(
                f"{len(self.failed)} of {len(self.trials)} trials of run {self.id} failed. "
                f"Trial {first.number} {first.params}: {(first.error or '').splitlines()[0]}\n"
                f"Its log is {TrialPaths(first.path).log}"
            ) from first.exception

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
            "end": self._apply_end,
        }
        handlers[event["event"]](event)

    def _apply_start(self, event: Event) -> None:
        self.state, self.reason = RunState.RUNNING, None
        self._started = event.get("time", self._started)

    def _apply_trials(self, event: Event) -> None:
        paths = RunPaths(self.path)
        for new in event["trials"]:
            path = paths.trial(new["number"]).folder
            self.trials.append(Trial(new["number"], new["params"], path, new["seed"]))

    def _apply_end(self, event: Event) -> None:
        self.state, self.reason = RunState(event["state"]), event.get("reason")
        self.duration_s = event.get("duration_s", 0.0)

    def __str__(self) -> str:
        return table.text(self)

    def _repr_html_(self) -> str:
        return table.html(self)
