"""Runs on the driver. A trial, live or loaded from its run directory."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl import checkpoints
from sparkdl.checkpoints import Checkpoint
from sparkdl.errors import ConfigError
from sparkdl.files import model_formats, storage
from sparkdl.files.jsonl import read_lines
from sparkdl.files.layout import EXACT, TrialPaths
from sparkdl.runs import trial_files
from sparkdl.runs.actions import Actions
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.states import TrialState

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The time and the resources that a trial used, in all its attempts.

    Of an attempt that was ended from outside, only the time in which it ran is known; it counts
    as `running_s`. Tables and pages call `running_s` the training time, and `starting_s` and
    `running_s` together the duration.

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

    @classmethod
    def of(cls, written: Mapping[str, float]) -> "Usage":
        """Create a usage from its fields; a later version may have written more."""
        names = {usage.name for usage in fields(cls)}
        return cls(**{name: value for name, value in written.items() if name in names})

    def __add__(self, other: "Usage") -> "Usage":
        """Return the usage of two attempts or trials together; the memory is the maximum."""
        mine, more = vars(self), vars(other)
        sums = {name: value + more[name] for name, value in mine.items()}
        return Usage(**{**sums, "peak_memory_mb": max(self.peak_memory_mb, other.peak_memory_mb)})


@dataclass(repr=False)
class Trial:
    """A trial: one parameter combination of a run.

    Attributes:
        number: the place of the trial in the run, from 0.
        params: the parameters; values that look like credentials are masked.
        path: the folder of the trial in the run directory.
        seed: the seed of `random`, NumPy and the framework.
        configuration: the number of the configuration. The trials of a configuration differ only
            in their seed, see `repeats=`.
        member: the member of a population that the trial trains for one interval, see
            `algorithm="pbt"`; None without a population.
        parent: the number of the trial from whose checkpoint it begins; None for none of its run.
        state: the state, see `TrialState`; equal to its name.
        value: the value of the metric, of several metrics the first; None unless COMPLETE.
        metrics: the last value of each metric that was reported or returned.
        outputs: the values that the training function returned, by name.
        error: the error message; its first line is a summary.
        note: a remark about a result that is complete, such as files that could not be copied to
            the run directory, with the place where they are, or a returned object that was not
            kept; of a search with several metrics, why the trial is PRUNED; None for no remark.
        failure: the kind of a failure: `exception`, `exit`, `signal`, `out of memory`,
            `GPU fault`, `lost executor`, `start deadline`, `timeout` or `port taken`.
        host: the name of the host on which the last attempt ended; None if it is unknown, and for
            the trials of distributed runs, whose errors name the ranks and their hosts.
        attempts: number of attempts that were started; above 1 after a lost executor, a retry or
            a pause.
        usage: the time and the resources that the trial used.
        spans: the start and the end of each attempt, in seconds since 1970; the end of a running
            attempt is None.
        span_states: the states in which the attempts that have ended did so.
        metric: the metric of the run, of several metrics the first; None if none was named.
        direction: `max` if larger values of the metric are better, else `min`.
        exception: the user's exception; only on the driver that ran the trial.
    """

    number: int
    params: dict[str, Any]
    path: str
    seed: int = 0
    configuration: int = 0
    member: int | None = None
    parent: int | None = None
    state: TrialState = TrialState.WAITING
    value: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    note: str | None = None
    failure: str | None = None
    host: str | None = None
    attempts: int = 0
    usage: Usage = Usage()
    spans: list[tuple[float, float | None]] = field(default_factory=list)
    span_states: list[TrialState] = field(default_factory=list)
    metric: str | None = None
    direction: str = "max"
    exception: BaseException | None = field(default=None, compare=False)
    _shape: str | None = field(default=None, compare=False)
    # Seconds of an attempt that has ended, until it is known whether its usage was measured.
    _unmeasured_s: float = field(default=0.0, compare=False)

    def __repr__(self) -> str:
        result = {} if self.value is None else {self.metric or "value": f"{self.value:.6g}"}
        shown = {**result, **self.params}
        words = [f"Trial {self.number}", self.state, *(f"{k}={v}" for k, v in shown.items())]
        return f"<{' '.join(words)}>"

    @property
    def duration_s(self) -> float:
        """Seconds from the start of the task to its end, in all attempts; no time in a queue."""
        return self.usage.starting_s + self.usage.running_s

    @property
    def result(self) -> Any:
        """The value that the training function returned; None without one.

        Numbers, text, bytes, lists, tuples, sets and dicts are as they were returned; an array or
        tensor of any framework is an array of NumPy, and a file is the path of its copy, relative
        to `path`. A model of Keras, PyTorch or scikit-learn was kept as a file, and is loaded from
        it. `outputs` has the same by name, in JSON values: lists for tuples and arrays, and paths
        for models. A value without a name is there as `value`, or under the metric's name.

        Raises:
            NotKeptError: if a part of the value is another object, which could not be kept, or
                is a model whose classes this process does not know.
        """
        if self._shape == EXACT:
            # The readers of models are not imported for tables and commands.
            from sparkdl.runs.results import returned_value

            return returned_value(self.path)
        values = list(self.outputs.values())
        if self._shape == "list":
            return values
        # Journals of earlier versions do not tell.
        is_single = self._shape == "value" or (not self._shape and [*self.outputs] == ["value"])
        if is_single:
            return values[0] if values else None
        return dict(self.outputs) if self._shape or values else None

    @property
    def summary(self) -> str:
        """The first line of the error, or the first two of a layer of Keras; empty without one."""
        error, where = self.error or "", r"(.*Exception encountered when calling \S+\.)\n\s*"
        # In bold letters, Keras tells what is wrong.
        of_layer = re.match(where + r"(?:\x1b\[1m)?([^\n\x1b]*)", error)
        return " ".join(of_layer.groups()) if of_layer else error.split("\n")[0]

    @property
    def history(self) -> "pd.DataFrame":
        """The reported values, with one row per step and one column per name.

        The values of a lost attempt are included up to the step from which the next attempt
        continued.
        """
        import pandas as pd

        frame = pd.DataFrame([{"step": step, **metrics} for step, metrics in self.reports()])
        return frame.groupby("step").last() if len(frame) else frame

    def reports(self) -> list[tuple[int, dict[str, float]]]:
        """Return all steps and reports, each attempt up to the step from which the next went on."""
        # Imported late: the table of the runs needs no reports.
        from sparkdl.runs.attempts import merge_attempts

        paths = TrialPaths(self.path)
        superseded = sorted(map(int, filter(str.isdigit, storage.list_names(paths.attempts))))
        folders = [paths.superseded(number) for number in superseded]
        attempts = [read_lines(TrialPaths(folder).metrics) for folder in (*folders, self.path)]
        return [(row["step"], row["metrics"]) for row in merge_attempts(attempts)]

    def reported_values(self) -> list[float]:
        """Return the values of the metric that the trial has reported, by step."""
        return [value for _, value in self.reported_steps()]

    def reported_steps(self) -> list[tuple[int, float]]:
        """Return the steps at which the trial has reported the metric, and the values."""
        values = [(step, self._metric_in(metrics)) for step, metrics in self.reports()]
        return [(step, value) for step, value in values if value is not None]

    def _metric_in(self, metrics: Mapping[str, float]) -> float | None:
        """Return the value of the metric of the run, or of the only metric if none was named."""
        if self.metric is None and len(metrics) == 1:
            return next(iter(metrics.values()))
        # A plain number is reported as `value` and counts as the metric.
        return metrics.get(self.metric or "value", metrics.get("value"))

    @property
    def data(self) -> list[dict[str, Any]]:
        """A record of each dataset that the trial opened, in the order of opening.

        A record has the number of rows, the batch size, the steps of an epoch, and the number of
        rows that all ranks together repeated or left out in an epoch.
        """
        return read_lines(TrialPaths(self.path).data)

    @property
    def columns(self) -> list[dict[str, Any]]:
        """A record of the columns for each reader: `feature_cols`, `fill`, `map` and so on.

        `experiment.predict` uses it for a model of this trial.
        """
        return read_lines(TrialPaths(self.path).columns)

    @property
    def last_value(self) -> float | None:
        """The value, or the last reported value of the metric, for example of a PRUNED trial."""
        if self.value is not None or self.state in (TrialState.COMPLETE, TrialState.INVALID):
            return self.value
        return self._metric_in(self.metrics)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The committed checkpoints that were kept, oldest first; each has a url and metrics."""
        return checkpoints.committed(self.path)

    @property
    def checkpoint(self) -> str | None:
        """The directory of the checkpoint with the weights whose value is `value`.

        That is the newest checkpoint with which this value of the metric was reported. If there is
        none, for example because the value was measured on other data, it is the newest
        checkpoint; None without checkpoints.
        """
        chosen = self.checkpoint_of_value()
        return chosen.url if chosen else None

    def checkpoint_of_value(self) -> Checkpoint | None:
        """Return the checkpoint of the property `checkpoint`, with its step and its files."""
        newest = checkpoints.newest(self.path)
        if newest is None or self.value is None or self._metric_in(newest.metrics) == self.value:
            return newest
        same = [c for c in self.checkpoints if self._metric_in(c.metrics) == self.value]
        return same[-1] if same else newest

    @property
    def best_checkpoint(self) -> str | None:
        """The directory of the kept checkpoint with the best value of the metric.

        None without a checkpoint with a value, or if several metrics were reported and the run has
        none. `keep_checkpoints="best+last"`, the default, keeps the best one.
        """
        best = checkpoints.best(self.checkpoints, self.metric, self.direction)
        return best.url if best else None

    def debug(
        self,
        *,
        env: Mapping[str, str] | None = None,
        from_start: bool = False,
        folder: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Call the kept training function in this process, with breakpoints, as this trial.

        The function gets the parameters, the seed, the last committed checkpoint and the resources
        of the trial; an interval of a population begins where it began. The function is loaded from
        the run directory, together with its modules, so debug only runs whose directory you trust
        as you would trust a program. The run stays as it is.

        Args:
            env: values of the variables that the run had with `env=`, which are never kept.
            from_start: begin without the checkpoint of the trial.
            folder: the folder for what the function writes; by default a new temporary folder.

        Returns:
            What the function returns.

        Raises:
            ConfigError: if the function, a parameter or a variable was not kept.
        """
        return Actions.debug(self, env or {}, from_start, folder)

    @property
    def model_path(self) -> str:
        """The path or URL of the model: an output, in `checkpoint`, or left in its directory.

        Raises:
            ConfigError: if the trial has no model, or several of which none is named `model`.
        """
        return trial_files.model_url(self.path, self.outputs, self.checkpoint_of_value)

    def model(self) -> Any:
        """Load the model into this process: what Keras, PyTorch or scikit-learn had returned.

        Returns:
            The Keras model, the object of a SavedModel, or the returned model of PyTorch or
            scikit-learn.

        Raises:
            ConfigError: if the trial has no model, or its outputs contain several.
            ValueError: if Keras does not know a class of the model: register the class, or import
                the module that registers it.
        """
        try:
            url = self.model_path
        except ConfigError:
            # Imported late: the table of the runs needs no returned values.
            from sparkdl.runs.results import returned_model

            if (model := returned_model(self.path)) is None:
                raise
            return model
        return model_formats.load_model(Path(trial_files.local_copy(url)))

    def artifact(self, name: str, to: str | os.PathLike[str] | None = None) -> str:
        """Return the local path of a file or folder that the training function returned.

        Args:
            name: the name under which the function returned the file. Under `model`, there is also
                the model of a trial that has a model only in its checkpoint.
            to: a folder for a copy. By default, a file on a local or mounted disk is not copied,
                and a file on a remote store is copied to a temporary folder, which is removed when
                this process ends.

        Raises:
            ConfigError: if the function returned no such file.
        """
        if name == "model" and name not in self.outputs:
            return trial_files.local_copy(self.model_path, to)
        return trial_files.local_copy(trial_files.artifact_url(self.path, self.outputs, name), to)

    def download(self, to: str | os.PathLike[str]) -> str:
        """Copy the folder of the trial, with its log, artifacts and checkpoints.

        Args:
            to: the local folder that receives the files; created if it is missing.

        Returns:
            The absolute path of `to`.
        """
        target = Path(to).absolute()
        storage.download(self.path, target)
        return str(target)

    def apply(self, event: TrialChanged) -> None:
        """Update this trial with an event of the journal."""
        self.state = event.state
        self.value = event.value
        self.error = event.error
        self.note = event.note
        self.failure = event.failure
        self.host = event.host or self.host
        if event.params is not None:
            self.params = event.params
        if event.attempt is not None:
            self.attempts = event.attempt + 1
        if event.metrics is not None:
            self.metrics = event.metrics
        if event.outputs is not None:
            self.outputs, self._shape = event.outputs, event.shape
        measured = Usage.of(event.usage) if event.usage is not None else None
        lasted_s = measured.starting_s + measured.running_s if measured else 0.0
        self._apply_time(float(event.ended or event.time or 0.0), lasted_s)
        # An attempt that was lost may be measured yet, by the event that lets the trial wait.
        is_ended = event.failure is not None or self.state not in (
            *(TrialState.COMPLETE, TrialState.FAILED, TrialState.INVALID, TrialState.LOST),
        )
        if measured is None and is_ended:
            measured = Usage(running_s=self._unmeasured_s)
        if measured is not None:
            self.usage += measured
            self._unmeasured_s = 0.0

    def _apply_time(self, now: float, lasted_s: float) -> None:
        if self.state == TrialState.RUNNING:
            # An attempt whose end nobody has told was lost with its driver.
            self.span_states += [TrialState.LOST] * (len(self.spans) - len(self.span_states))
            self.spans.append((now, None))
        elif self.spans and self.spans[-1][1] is None:
            # The driver learns of a start with a delay, so the duration of the task decides.
            begun = min(self.spans[-1][0], now - lasted_s)
            self.spans[-1] = (begun, max(begun, now))
            is_repeated = self.state == TrialState.WAITING
            self.span_states.append(TrialState.LOST if is_repeated else self.state)
            self._unmeasured_s = round(max(0.0, now - begun), 4)
