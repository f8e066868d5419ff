"""Runs on the driver. A run, live or loaded from its directory."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sparkdl.errors import (
    AllTrialsFailedError,
    ConfigError,
    ControlError,
    NoCompleteTrialError,
    RunStoppedError,
    TrainingFailedError,
    TrialFailedError,
)
from sparkdl.files import folders
from sparkdl.files.layout import RunPaths, TrialPaths
from sparkdl.host.loopback import LOOPBACK
from sparkdl.options import plain_number
from sparkdl.runs import annotations as annotation_files
from sparkdl.runs import ranking, table
from sparkdl.runs.actions import Actions, TensorBoardPage
from sparkdl.runs.annotations import Annotations, Note
from sparkdl.runs.commands import Command
from sparkdl.runs.deletion import delete_run
from sparkdl.runs.differences import Differences, read_differences
from sparkdl.runs.events import (
    CommandHandled,
    Event,
    ExecutorExcluded,
    GangResized,
    ParameterSuggested,
    RankMoved,
    RankSlow,
    RunEnded,
    RunStarted,
    TrialChanged,
    TrialsAdded,
)
from sparkdl.runs.handle import Handle, check_settings
from sparkdl.runs.states import WRONG_METRIC, RunState, TrialState, why_no_value
from sparkdl.runs.trial import Trial, Usage

if TYPE_CHECKING:
    import pandas as pd

_TRACEBACK = "Traceback (most recent call last)"
# The table shows the last changes of the size of a gang.
MAX_RESIZES = 5


@dataclass(repr=False)
class Run:
    """The result of one call of a verb: its trials and their values.

    `print(run)` shows a table; a notebook shows it as HTML.

    Attributes:
        id: the name of the run directory.
        path: the path or URL of the run directory.
        name: the name that was given to the run.
        kind: the verb, such as `launch` or `search`.
        metric: the name of the metric; None if none was named.
        direction: `max` if larger values are better, else `min`.
        objectives: the direction of each metric, for a search with several metrics; `metric` is
            the first of them.
        state: the state of the run, see `RunState`.
        reason: the reason for which the run ended early.
        repeats: the number of trials of each configuration.
        trials: the trials, in the order in which they were created.
        duration_s: seconds from the start of the run to its end, the sum of all its sessions: a
            session ends when the run ends or its driver dies, and `resume` starts another.
        num_sessions: the number of sessions.
        num_trials: the number of configurations that a search will try; None for no limit, and for
            any run that is no search.
        is_paused: the driver starts no trial until `unpause`.
        idle: a sentence about the share of the slots' time that no trial used.
        timeline: a sentence about the parts of a training step, for a run with `timeline=True`.
        is_search: a search made the trials, rather than a list of parameters.
        is_distributed: the run is one trial of a distributed verb.
        is_resumable: the run can be resumed.
        reproduces: the id of the run that this one reproduces; None for any other.
        excluded: the executors that got no more trials, such as `executor 3 on host b`, each with
            the reason.
        slow_ranks: sentences about ranks of gangs that the other ranks wait for, or that have
            moved to another host; the newest last.
        resizes: sentences about the changes of the number of workers of gangs that grow into idle
            slots, such as `2 -> 4 workers: slots were idle`; the newest last.
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
    repeats: int = 1
    trials: list[Trial] = field(default_factory=list)
    duration_s: float = 0.0
    num_sessions: int = 0
    num_trials: int | None = None
    is_paused: bool = False
    idle: str | None = None
    timeline: str | None = None
    is_search: bool = False
    is_distributed: bool = False
    is_resumable: bool = True
    reproduces: str | None = None
    excluded: dict[str, str] = field(default_factory=dict)
    slow_ranks: list[str] = field(default_factory=list)
    resizes: list[str] = field(default_factory=list)
    _handle: Handle | None = field(default=None, repr=False, compare=False)
    _tensorboard: TensorBoardPage | None = field(default=None, repr=False, compare=False)
    # The last table of this run that was made as text.
    _last_text: str | None = field(default=None, repr=False, compare=False)
    # The times of the first and the last event of a session that has not ended.
    _session: tuple[float, float] | None = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> Trial:
        """The COMPLETE trial with the best value.

        With `repeats=`, the best trial of the configuration with the best mean; a configuration
        whose repeats are not all COMPLETE comes after all others.

        Raises:
            NoCompleteTrialError: if no trial is COMPLETE with a value, or if the run has several
                metrics.
        """
        if len(self.objectives) > 1:
            raise NoCompleteTrialError(
                f"run {self.id} has several metrics ({', '.join(self.objectives)}), so that no "
                "single trial is the best. Choose one of run.pareto."
            )
        best = self.top(1)
        if not best:
            raise NoCompleteTrialError(
                f"run {self.id} has no best trial: {self.counts_text()}. {self._why_no_best()}"
            )
        return best[0]

    def _why_no_best(self) -> str:
        """Return the reason for which no COMPLETE trial has a value, and what to do."""
        states = {trial.state for trial in self.trials}
        if TrialState.COMPLETE in states:
            names = dict.fromkeys(name for trial in self.trials for name in trial.metrics)
            if len(names) > 1:
                return f"The trials returned {', '.join(names)}: name one of them with metric=."
            return why_no_value(trial.note for trial in self.trials)
        if self.state == RunState.RUNNING:
            return "The run goes on: print(run) shows the last reported values."
        if states == {TrialState.PRUNED}:
            return "The pruner stopped all trials: give it a larger grace, or remove pruner=."
        return f"See print(run), run.failed or {self.path}."

    @property
    def goal(self) -> str:
        """The metrics with their directions, such as `highest accuracy`."""
        words = {"max": "highest", "min": "lowest"}
        return ", ".join(f"{words[way]} {name}" for name, way in self.directions.items())

    def top(self, n: int) -> list[Trial]:
        """Return the `n` best COMPLETE trials, best first; of equal trials the earlier one first.

        With `repeats=` the trials of the configuration with the best mean come first, see `best`.
        """
        return ranking.ranked(self.trials, self.direction, self.repeats)[:n]

    @property
    def pareto(self) -> list[Trial]:
        """The COMPLETE trials that no other trial dominates, see `ranking.pareto`."""
        if not self.objectives:
            return self.top(1)
        return ranking.pareto(self.trials, self.objectives, self.repeats)

    def means(self) -> dict[int, tuple[float, float]]:
        """Return the mean and the standard deviation of each configuration's COMPLETE trials."""
        return ranking.means(self.trials)

    @property
    def directions(self) -> dict[str, str]:
        """The direction of each metric, also of a single metric."""
        return self.objectives or {self.metric or "value": self.direction}

    @property
    def num_configurations(self) -> int:
        """The number of configurations; with `repeats=` each has several trials."""
        return len({trial.configuration for trial in self.trials})

    @property
    def failed(self) -> list[Trial]:
        """The trials whose training function raised or whose process died."""
        return [trial for trial in self.trials if trial.state == TrialState.FAILED]

    @property
    def result(self) -> Any:
        """The value that the training function returned, for a run of one trial; else None.

        See `Trial.result`.
        """
        return self.trials[0].result if len(self.trials) == 1 else None

    @property
    def differences(self) -> Differences:
        """The differences from the run that this one reproduces, at its start; else empty."""
        return read_differences(self.path) if self.reproduces else Differences()

    @property
    def usage(self) -> Usage:
        """The sum of the usage of all trials; the memory is the maximum."""
        return sum((trial.usage for trial in self.trials), Usage())

    def counts(self) -> dict[str, int]:
        """Return the number of trials in each state that occurs."""
        states = [trial.state for trial in self.trials]
        return {str(state): states.count(state) for state in TrialState if state in states}

    def counts_text(self) -> str:
        """Return the counts in words, such as `5 of 6 trials complete, 1 failed`."""
        counts, total = self.counts(), len(self.trials)
        is_short = self.state in (RunState.RUNNING, RunState.CANCELLED)
        if is_short and self.num_trials is not None:
            total = max(total, self.num_trials * self.repeats)  # Others would be proposed.
        complete = f"{counts.pop('COMPLETE', 0)} of {total} trials complete"
        return ", ".join([complete, *(f"{n} {state.lower()}" for state, n in counts.items())])

    def to_pandas(self) -> "pd.DataFrame":
        """Return a table with one row per trial.

        It has the state, the configuration, the parameters, the last value of each metric, the
        outputs, the value and the usage.
        """
        return table.frame(self.trials)

    def raise_for_failures(self) -> None:
        """Raise the first failed trial's error, if any trial failed.

        Raises:
            TrialFailedError: if a trial failed. Its cause is the user's exception if this driver
                ran the trial.
        """
        if self.failed:
            first = self.failed[0]
            raise TrialFailedError(
                f"{len(self.failed)} of {len(self.trials)} trials of run {self.id} failed. "
                f"Trial {first.number} {first.params}: {first.summary}\n"
                f"Its log is {_log_of(first)}",
                self,
            ) from first.exception

    def raise_unless_complete(self) -> None:
        """Raise an error if the run has ended in any other state than COMPLETE.

        Raises:
            AllTrialsFailedError: if all trials failed. Its cause is the first trial's exception.
            TrainingFailedError: likewise for a run of a distributed verb.
            RunStoppedError: if the run ended early, and trials completed or were cancelled.
        """
        if self.state in (RunState.COMPLETE, RunState.RUNNING):
            return
        why = f" ({self.reason})" if self.reason else ""
        failures = [t for t in self.trials if t.state in (TrialState.FAILED, TrialState.INVALID)]
        if self.state != RunState.FAILED or self.counts().get("COMPLETE") or not failures:
            raise RunStoppedError(
                f"{self.kind} {self.id} ended {self.state}{why}: {self.counts_text()}. "
                f"{self.how_to_finish()}All files are in {self.path}",
                self,
            )
        first = next((trial for trial in failures if trial.exception), failures[0])
        if self.is_distributed:
            raise TrainingFailedError(
                f"{self.kind} {self.id} failed. {_without_traceback(first.error or '')}\n"
                f"All files are in {self.path}",
                self,
            ) from first.exception
        raise AllTrialsFailedError(
            f"no trial of run {self.id} completed: {self.counts_text()}{why}. "
            f"Trial {first.number} with {first.params}: {first.summary}\n"
            f"Its log is {_log_of(first)}, all files are in {self.path}",
            self,
        ) from first.exception

    def how_to_finish(self) -> str:
        """Return a sentence with the call that finishes a run that has ended early, or ""."""
        from sparkdl.runs import remedies  # Imported late: the table of the runs needs no call.

        if not self.is_resumable or self.state == RunState.COMPLETE:
            return ""
        if WRONG_METRIC in (self.reason or ""):
            return ""  # The metric of a run cannot be changed.
        if not self.has_work_left:  # Resumed as it is, the run would run nothing.
            states = {trial.state for trial in self.trials}
            kinds = [n for n in ("failed", "invalid") if n.upper() in states] or ["cancelled"]
            choice = kinds[0] if len(kinds) == 1 else kinds
            call = f"experiment.resume({self.path!r}, train=train, retry={choice!r})"
            where = ", in Python" if remedies.is_in_shell() else ""
            return f"After correcting the training function{where}: {call}. "
        # With the same limit, the failures that ended the run would end it again.
        retry = {"retry": "failed"} if "max_failed_trials" in (self.reason or "") else {}
        return f"To finish it: {remedies.call('resume', self.path, **retry)}. "

    @property
    def has_work_left(self) -> bool:
        """True if a resume runs trials: those that were stopped, or have not been proposed."""
        # Imported late: the table of the runs does not need it.
        from sparkdl.runs.retry_choice import waits_again

        limit = None if self.num_trials is None else self.num_trials * self.repeats
        is_short = self.kind == "search" and (limit is None or len(self.trials) < limit)
        return is_short or any(map(waits_again, self.trials))

    def apply(self, event: Event) -> None:
        """Update this run with an event of its journal; events of its study change nothing."""
        time = event.time or 0.0
        if self._session and not isinstance(event, RunStarted):
            self._session = self._session[0], max(self._session[1], time)
        match event:
            case RunStarted():
                self.state = RunState.RUNNING
                self.reason = None
                self.end_session()  # The driver before has died.
                self._session = time, time
                self.num_sessions += 1
                self.is_paused = False
                changed = event.changed or {}
                self.num_trials = changed.get("num_trials", [None, self.num_trials])[1]
            case TrialsAdded():
                self._add_trials(event)
            case TrialChanged():
                self.trials[event.number].apply(event)
            case ParameterSuggested():
                trial = self.trials[event.number]
                # Another thread may be showing the present dict.
                trial.params = {**trial.params, event.name: event.value}
            case CommandHandled(refused=None):
                self._apply_command(event.action, event.arguments)
            case ExecutorExcluded():
                name = f"executor {event.executor} on host {event.host}"
                self.excluded = {**self.excluded, name: event.reason}
            case RankSlow() | RankMoved() | GangResized():
                self._add_news(event)
            case RunEnded():
                self.state = event.state
                self.is_paused = False
                self.reason = event.reason
                self.duration_s += event.duration_s or 0.0
                self._session = None
                self.idle = event.idle
                self.timeline = event.timeline

    def _add_news(self, event: RankSlow | RankMoved | GangResized) -> None:
        """Add a sentence about the ranks of a gang."""
        # Imported late: most runs have no slow ranks.
        from sparkdl.runs.rank_texts import rank_text

        where = f"trial {event.number}: " if len(self.trials) > 1 else ""
        text = f"{where}{rank_text(event)}"
        if isinstance(event, GangResized):
            self.resizes = [*self.resizes, text]
        else:
            self.slow_ranks = [*self.slow_ranks, text]

    def end_session(self) -> None:
        """Add the time of a session whose driver has died: until its last event, at least."""
        if self._session:
            self.duration_s += round(self._session[1] - self._session[0], 3)
            self._session = None

    def _apply_command(self, action: str, arguments: Mapping[str, Any]) -> None:
        if action in ("pause", "unpause"):
            self.is_paused = action == "pause"
        elif action == "set" and "num_trials" in arguments:
            self.num_trials = arguments["num_trials"]
        elif action == "enqueue" and self.num_trials is not None:
            self.num_trials += 1

    def _add_trials(self, event: TrialsAdded) -> None:
        paths = RunPaths(self.path)
        for new in event.trials:
            number, path = new.number, paths.trial(new.number).folder
            configuration = number if new.configuration is None else new.configuration
            trial = Trial(number, new.params, path, new.seed, configuration, new.member, new.parent)
            trial.metric, trial.direction = self.metric, self.direction
            self.trials.append(trial)

    def view(self) -> table.View:
        """Return what the table of the run shows, as it is at this moment."""
        reason = self.reason or ("paused" if self.is_paused else "")
        reason = f" ({reason})" if reason else ""
        seconds = f" in {self.duration_s:.1f} s" if self.duration_s else ""
        headline = f"Run {self.id}: {self.state}{reason}, {self.counts_text()}{seconds}"
        has_results = len(self.trials) > 1 and self.counts().get("COMPLETE")
        trials = list(self.trials)  # A live run adds trials from another thread.
        return table.View(
            headline=headline,
            trials=trials,
            ranked=ranking.ranked(trials, self.direction, self.repeats),
            metric=self.metric or "value",
            goal=self.goal,
            path=self.path,
            other_metrics=list(self.objectives)[1:],
            means=ranking.means(trials) if self.repeats > 1 else {},
            num_complete=ranking.num_complete(trials),
            repeats=self.repeats,
            unnamed=table.unnamed(trials, self.metric),
            in_common=self.failures_in_common(),
            excluded=self.excluded,
            of_ranks=[*self.slow_ranks, *self.resizes[-MAX_RESIZES:]],
            why_no_best=self._why_no_best() if has_results else "",
            pareto=self.pareto if len(self.objectives) > 1 else [],
        )

    def failures_in_common(self) -> list[str]:
        """Return what the failed trials have in common and the others have not, as sentences.

        Such as `All 3 failed trials have units=64, and none of the 9 others`: a fact about these
        trials, which need not be the cause.
        """
        if len(self.failed) < 2:
            return []
        # Imported late: most runs have no failed trials.
        from sparkdl.runs.failures import in_common

        return in_common(list(self.trials))

    def plot(self, what: str | None = None) -> Any:
        """Return a plotly figure, which a notebook shows.

        Args:
            what: `history`, `parallel`, `slices`, `importance`, `curves`, `timeline` or `pareto`;
                None chooses a figure for which the run has enough data.
        """
        from sparkdl.runs.views.figures import plot  # Importing plotly takes a second.

        return plot(self, what)

    def report(self, to: str | os.PathLike[str] | None = None) -> str:
        """Write the page `report.html`, and return its path.

        Args:
            to: the file; by default `report.html` in the run directory, where the driver writes
                it when the run ends.
        """
        from sparkdl.runs.views.report import write_report

        return write_report(self, None if to is None else os.fspath(to))

    def card(
        self, to: str | os.PathLike[str] | None = None, *, root: str | None = None
    ) -> dict[str, Any]:
        """Return the card of the run, for those who were not there, and write it.

        The card has the best trial with the SHA-256 of its files, the data with its versions and
        fingerprints, the code, the environment, the lineage, and the results of
        `experiment.verify`.

        Args:
            to: a file that ends in `.html`, for a page, or in `.json`; by default none is written.
            root: the folder that `experiment.verify` was given as `root`.

        Raises:
            ConfigError: if the file has another ending.
        """
        from sparkdl.runs.views.card import card_of, write_card

        if to is None:
            return card_of(self, root)
        return write_card(self, os.fspath(to), root)

    # ---- control: in the program that runs the run, or by files that its driver reads

    def attach(self, handle: Handle) -> None:
        """Set the object that executes this run, or reaches its driver."""
        self._handle = handle

    def wait(self) -> "Run":
        """Wait until the run has ended, and return the run.

        Ctrl-C cancels a run of this process. It only ends the waiting for a run of another process.

        Raises:
            RunStoppedError, AllTrialsFailedError, TrainingFailedError: if the run is not COMPLETE
                then, see `raise_unless_complete`.
        """
        if self._handle:
            self._handle.wait()
        return self

    def cancel(self, trial: Trial | int | None = None) -> None:
        """Cancel one trial, or the whole run; finished trials keep their results.

        In the program that runs the run, the method returns at once, and does nothing if the run
        has ended.

        Raises:
            ConfigError: if the run has no such trial, or `trial` is neither a trial nor a number.
            ControlError: if the run of another process has ended, or its driver does not answer.
        """
        number = plain_number(trial.number if isinstance(trial, Trial) else trial)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise ConfigError(f"trial is {trial!r}; expected a trial, or its number, such as 3.")
        if self._handle:
            self._handle.control(Command("cancel", {} if number is None else {"trial": number}))

    def set(
        self,
        *,
        parallelism: int | None = None,
        num_trials: int | None = None,
        stop: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        **unknown: Any,
    ) -> None:
        """Change limits of the run while it goes on. A resumed run keeps the new values.

        Args:
            parallelism: largest number of trials at the same time. Running trials go on.
            num_trials: total number of configurations that a search tries.
            stop: target value of each metric of a search, by name; a trial that has reached a
                target ends the search.
            timeout_s: time limit for all trials together, in seconds since the first one started.
            **unknown: raises an error that names the setting that was probably meant.

        Raises:
            ConfigError: if a value is invalid, or no value is given.
            ControlError: if the driver refuses, for example a `num_trials` below the number of
                configurations that the search has, or does not answer. Nothing was changed.
        """
        values = {
            "parallelism": plain_number(parallelism),
            "num_trials": plain_number(num_trials),
            "stop": {name: plain_number(value) for name, value in stop.items()}
            if isinstance(stop, Mapping)
            else stop,
            "timeout_s": plain_number(timeout_s),
        }
        changes = {name: value for name, value in values.items() if value is not None}
        check_settings(changes, unknown)
        self._control(Command("set", changes))

    def enqueue(self, params: Mapping[str, Any]) -> None:
        """Add a trial with these parameters to a launch or a search.

        In a search the trial runs before others that the sampler proposes, and `num_trials` grows
        by one. The sampler chooses parameters that are missing, and learns from the result.

        Raises:
            ConfigError: if a value cannot be stored, or looks like a credential.
            ControlError: if the driver refuses, for example parameters that the training function
                does not take, or does not answer. Nothing was changed.
        """
        if not isinstance(params, Mapping):
            raise ConfigError(f"params is {params!r}; expected a dict from parameter to value.")
        self._control(Command("enqueue", {"params": dict(params)}))

    def pause(self) -> None:
        """Start no more trials until `unpause`; running trials go on.

        The time limit of the run goes on, too. A paused run whose driver ends can be resumed.

        Raises:
            ControlError: if the run has ended, or its driver does not answer.
        """
        self._control(Command("pause"))

    def unpause(self) -> None:
        """Start trials again after `pause`.

        Raises:
            ControlError: if the run has ended, or its driver does not answer.
        """
        self._control(Command("unpause"))

    def _control(self, command: Command) -> None:
        if self._handle is None:
            raise ControlError(f"{command}: run {self.id} has no driver in this process.", self)
        self._handle.control(command)

    # ---- pages in a browser

    def tensorboard(self, *, host: str = LOOPBACK, port: int = 0) -> TensorBoardPage:
        """Start TensorBoard for this run, or return the page of one that runs already.

        The returned object has `url` and `stop()`, is a context manager, and shows the page in a
        notebook. TensorBoard follows a run that goes on, here or elsewhere. TensorBoard ends when
        neither that object nor the run is in use any more, and with the program.

        Args:
            host: the address on which TensorBoard listens. TensorBoard asks nobody for a password.
            port: the port; with 0, TensorBoard chooses a free one.

        Raises:
            ConfigError: if TensorBoard is not installed.
        """
        if self._tensorboard is None or not self._tensorboard.is_running:
            self._tensorboard = Actions.tensorboard(self, host=host, port=port)
        return self._tensorboard

    def attach_tensorboard(self, tensorboard: TensorBoardPage) -> None:
        """Set the TensorBoard that `tensorboard()` returns."""
        self._tensorboard = tensorboard

    # ---- the run directory

    @property
    def tags(self) -> list[str]:
        """The tags that users gave to the run, read from the run directory now."""
        return self.annotations().tags

    @property
    def notes(self) -> list[Note]:
        """The notes of users on the run, oldest first, read from the run directory now."""
        return self.annotations().notes

    def annotations(self) -> Annotations:
        """Return the tags and the notes, read at once."""
        return annotation_files.read(self.path)

    def tag(self, *tags: str) -> None:
        """Give tags to the run, at any time; `experiment.history(tags=...)` finds them.

        `sparkdl gc` never deletes a run with the tag `keep`.

        Raises:
            ConfigError: if a tag is no text, or contains a comma.
        """
        if added := annotation_files.check_tags(tags):
            annotation_files.add(self.path, tags=added)

    def untag(self, *tags: str) -> None:
        """Remove tags from the run; a tag that the run does not have is ignored."""
        if removed := annotation_files.check_tags(tags):
            annotation_files.add(self.path, untag=removed)

    def note(self, text: str) -> None:
        """Write a note on the run, at any time. Earlier notes stay.

        Raises:
            ConfigError: if the note is no text, or is empty.
        """
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"the note is {text!r}; expected a text.")
        annotation_files.add(self.path, note=text.strip())

    def ui(self, *, port: int = 0, control: bool = False) -> Any:
        """Show the run in a browser while it goes on, see `sparkdl ui`.

        A program prints the address of the page, and a notebook shows the page in a frame. The
        page ends with the program.

        Args:
            port: the port on this host; 0 takes a free one.
            control: let the page cancel, pause and change runs, add trials, and write tags and
                notes.

        Returns:
            The page, with its `url`, and with `wait()` and `stop()`.

        Raises:
            ConfigError: if the packages of the extra `ui` are not installed, or if the port cannot
                be used.
        """
        return Actions.ui(self.path, port=port, control=control)

    @property
    def size(self) -> int:
        """The size of all files in the run directory, in bytes. Each file is looked up."""
        return sum(folders.files_in(self.path).values())

    def delete(self) -> None:
        """Remove the run directory with all its files.

        Raises:
            RunExistsError: if the driver of the run or of a verification is alive, or a model in
                the registry comes from the run. Nothing was removed.
            OSError: if a file could not be removed.
        """
        delete_run(self.path, self.id)

    # ---- tables

    def __repr__(self) -> str:
        return f"<{self.view().headline}>"

    def __str__(self) -> str:
        self._last_text = table.text(self.view())
        return self._last_text

    @property
    def is_shown(self) -> bool:
        """True if the program has made the table of this run as it is now, to show the table."""
        return self._last_text == table.text(self.view())

    def _repr_html_(self) -> str:
        return table.html(self.view())


def _without_traceback(error: str) -> str:
    """Return the error of a rank without its traceback, which the cause of the exception shows."""
    paragraphs = error.strip().split("\n\n")
    return "\n".join(p.strip() for p in paragraphs if not p.startswith(_TRACEBACK))


def _log_of(trial: Trial) -> str:
    """Return the log that the error names, for a gang the failed rank's; else the trial's log."""
    match = re.search(r"^Its log: (.*)$", trial.error or "", re.MULTILINE)
    return match[1] if match else TrialPaths(trial.path).log
