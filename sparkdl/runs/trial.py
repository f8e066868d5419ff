"""Runs on the driver. A trial, live or loaded from its run directory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from sparkdl import checkpoints, storage
from sparkdl.jsonl import read_lines
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.states import TrialState

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Trial", "Usage"]


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The time and the resources that a trial used.

    Attributes:
        queued_s: seconds from the submission to Spark until the task started.
        starting_s: seconds from the start of the task until the training function was called.
        running_s: seconds in the training function.
        first_step_s: the part of `running_s` before the first `context.report`; 0 without reports.
        reporting_s: the part of `running_s` in `context.report`.
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
    """A trial: one parameter combination of a run.

    Attributes:
        number: the place of the trial in the run, from 0.
        params: the parameters; values that look like credentials are masked.
        path: the folder of the trial in the run directory.
        seed: the seed of `random`, NumPy and the framework.
        configuration: the number of the configuration. The trials of a configuration differ only
            in their seed, see `repeats=`.
        state: the state, see `TrialState`; equal to its name.
        value: the value of the metric, of several metrics the first; None unless COMPLETE.
        metrics: the last value of each metric that was reported or returned.
        outputs: the values that the training function returned, by name.
        error: the error message; its first line is a summary.
        note: a remark about a result that is complete, such as files that could not be copied to
            the run directory, with the place where they are; None if there is none.
        failure: the kind of a failure: `exception`, `exit`, `signal`, `out of memory`,
            `GPU fault`, `lost executor`, `start deadline`, `timeout` or `port taken`.
        attempts: number of attempts that were started; above 1 after a lost executor or a retry.
        usage: the time and the resources that the trial used.
        spans: the start and the end of each attempt, in seconds since 1970; the end of a running
            attempt is None.
        exception: the user's exception; only on the driver that ran the trial.
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
    note: str | None = None
    failure: str | None = None
    attempts: int = 0
    usage: Usage = Usage()
    spans: list[tuple[float, float | None]] = field(default_factory=list, repr=False)
    exception: BaseException | None = field(default=None, repr=False, compare=False)

    @property
    def duration_s(self) -> float:
        """Seconds from the start of the task to its end."""
        return self.usage.starting_s + self.usage.running_s

    @property
    def summary(self) -> str:
        """The first line of the error; empty if there is no error."""
        return self.error.split("\n")[0] if self.error else ""

    @property
    def history(self) -> "pd.DataFrame":
        """The reported values, with one row per step and one column per name.

        The values of a lost attempt are included up to the step from which the next attempt
        continued.
        """
        paths = TrialPaths(self.path)
        superseded = sorted(
            int(name) for name in storage.list_names(paths.attempts) if name.isdigit()
        )
        folders = [paths.superseded(number) for number in superseded]
        attempts = [read_lines(TrialPaths(folder).metrics) for folder in (*folders, self.path)]
        rows = merge_attempts(attempts)
        import pandas as pd

        frame = pd.DataFrame([{"step": row["step"], **row["metrics"]} for row in rows])
        return frame.groupby("step").last() if len(frame) else frame

    @property
    def data(self) -> list[dict[str, Any]]:
        """A record of each dataset that the trial opened, in the order of opening.

        A record has the number of rows, the batch size, the steps of an epoch, and the number of
        rows that all ranks together repeated or left out in an epoch.
        """
        return read_lines(TrialPaths(self.path).data)

    @property
    def checkpoint(self) -> str | None:
        """The directory of the newest committed checkpoint; None if there is none."""
        newest = checkpoints.newest(self.path)
        return newest.url if newest else None

    def apply(self, event: TrialChanged) -> None:
        """Update this trial with an event of the journal."""
        self.state = event.state
        self.value = event.value
        self.error = event.error
        self.note = event.note
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
            names = {usage.name for usage in fields(Usage)}  # A later version may write more.
            self.usage = Usage(**{k: v for k, v in event.usage.items() if k in names})
        now = float(event.ended or event.time or 0.0)
        self._apply_time(now, self.duration_s if event.usage is not None else 0.0)

    def _apply_time(self, now: float, lasted_s: float) -> None:
        if self.state == TrialState.RUNNING:
            self.spans.append((now, None))
        elif self.spans and self.spans[-1][1] is None:
            # The driver learns of a start with a delay, so the duration of the task decides.
            begun = min(self.spans[-1][0], now - lasted_s)
            self.spans[-1] = (begun, max(begun, now))


def merge_attempts(attempts: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows of all attempts, each up to the step at which a later attempt began.

    Args:
        attempts: the reported rows of each attempt, earliest attempt first.

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
