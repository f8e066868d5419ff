"""Runs on the driver. A trial as a person sees it, live or read from disk."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from sparkdl import checkpoints, storage
from sparkdl.jsonl import read_lines
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.states import TrialState

__all__ = ["Trial", "Usage"]


@dataclass(frozen=True)
class Usage:
    """Where a trial's time went, and what it used.

    Attributes:
        queued_s: seconds from its submission to Spark until its task started.
        starting_s: seconds from there to the first line of the training function.
        running_s: seconds in the training function.
        first_step_s: of these, those until its first `context.report`; 0 without any.
        reporting_s: of these, those spent in `context.report`.
        cpu_s: CPU seconds of the training process and its children, user and system.
        peak_memory_mb: the largest resident size of the training process, in MiB.
    """

    queued_s: float = 0.0
    starting_s: float = 0.0
    running_s: float = 0.0
    first_step_s: float = 0.0
    reporting_s: float = 0.0
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
        configuration: trials of one differ in nothing but their seed, see `repeats=`.
        state: see `TrialState`; equal to its name.
        value: the metric's number, None unless COMPLETE; of several metrics the first one's.
        metrics: the last of each number reported or returned.
        outputs: what the training function returned, by name.
        error: what went wrong, its first line the summary.
        failure: of which kind that is: `exception`, `exit`, `signal`, `out of memory`,
            `GPU fault`, `lost executor`, `start deadline`, `timeout` or `port taken`.
        attempts: how often it was started; more than one after a lost executor.
        usage: where its time went.
        spans: when each attempt started and ended, in seconds since 1970; the end is None before.
        exception: the person's own exception, on the driver that ran it.
    """

    number: int
    params: dict[str, Any]
    path: str
    seed: int = 0
    configuration: int = 0
    state: TrialState = TrialState.WAITING
    value: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    failure: str | None = None
    attempts: int = 0
    usage: Usage = Usage()
    spans: list[tuple[float, float | None]] = field(default_factory=list, repr=False)
    exception: BaseException | None = field(default=None, repr=False, compare=False)

    @property
    def duration_s(self) -> float:
        """Seconds from the start of its task to its end."""
        return self.usage.starting_s + self.usage.running_s

    @property
    def summary(self) -> str:
        """The first line of the error, empty if there is none."""
        return self.error.split("\n")[0] if self.error else ""

    @property
    def history(self) -> pd.DataFrame:
        """Everything reported, a row per step, a column per name.

        What a lost attempt reported counts up to the step that the next one continued from.
        """
        paths = TrialPaths(self.path)
        lost = sorted(int(name) for name in storage.names(paths.attempts) if name.isdigit())
        folders = [paths.superseded(number) for number in lost]
        attempts = [read_lines(TrialPaths(folder).metrics) for folder in (*folders, self.path)]
        rows = merge_attempts(attempts)
        frame = pd.DataFrame([{"step": row["step"], **row["metrics"]} for row in rows])
        return frame.groupby("step").last() if len(frame) else frame

    @property
    def data(self) -> list[dict[str, Any]]:
        """What it read, in the order in which it opened it: rows, batch sizes, steps of a pass,
        and how many rows of a pass all ranks together repeated or left out."""
        return read_lines(TrialPaths(self.path).data)

    @property
    def checkpoint(self) -> str | None:
        """The directory of the newest committed checkpoint; None where there is none."""
        newest = checkpoints.newest(self.path)
        return newest.url if newest else None

    def apply(self, event: TrialChanged) -> None:
        """Update this trial with an event of the journal."""
        self.state = event.state
        self.value = event.value
        self.error = event.error
        self.failure = event.failure
        if event.params is not None:
            self.params = event.params
        if event.attempt is not None:
            self.attempts = event.attempt + 1
        if event.metrics is not None:
            self.metrics = event.metrics
        if event.outputs is not None:
            self.outputs = event.outputs
        if event.usage is not None:
            self.usage = Usage(**event.usage)
        now = float(event.ended or event.time or 0.0)
        self._apply_time(now, self.duration_s if event.usage is not None else 0.0)

    def _apply_time(self, now: float, lasted_s: float) -> None:
        if self.state == TrialState.RUNNING:
            self.spans.append((now, None))
        elif self.spans and self.spans[-1][1] is None:
            # The driver sees a start a moment late.
            begun = min(self.spans[-1][0], now - lasted_s)
            self.spans[-1] = (begun, max(begun, now))


def merge_attempts(attempts: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of all attempts, earliest first, each up to where a later one began.

    Example:
        >>> first = [{"step": 1}, {"step": 2}, {"step": 3, "cut": True}]
        >>> merge_attempts([first, [{"step": 3}, {"step": 4}]])
        [{'step': 1}, {'step': 2}, {'step': 3}, {'step': 4}]
    """
    merged: list[dict[str, Any]] = []
    end = math.inf
    for rows in reversed(attempts):
        merged = [row for row in rows if row["step"] < end] + merged
        end = min(end, rows[0]["step"]) if rows else end
    return merged
