"""Runs anywhere (pure). The events of a run's journal.

The journal is a file of JSON lines. Each line is an event: its time, its kind under the key
`event`, and the fields of the class that belongs to the kind. A field that is None is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, TypeAlias

from sparkdl.runs.states import RunState, TextEnum, TrialState


class EventKind(TextEnum):
    """The kinds of events, as the journal names them."""

    START = "start"
    TRIALS = "trials"
    TRIAL = "trial"
    SUGGESTED = "suggested"
    REPORTS = "reports"
    ATTRIBUTES = "told"
    STOP = "stop"
    CONTROL = "control"
    EXCLUDED = "excluded"
    SLOW = "slow"
    MOVED = "moved"
    RESIZED = "resized"
    END = "end"


@dataclass(frozen=True, kw_only=True)
class Event:
    """The base class of all events.

    Attributes:
        kind: the kind of the event; a constant of each class.
        time: seconds since 1970; None until the event is written to the journal.
    """

    kind: ClassVar[EventKind]
    time: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a JSON object; `event_from_dict` reads it."""
        optional = {field.name for field in fields(self) if field.default is None}
        values = {
            name: value
            for name, value in self._to_json_values().items()
            if value is not None or name not in optional
        }
        time = {"time": values.pop("time")} if "time" in values else {}
        return {**time, "event": str(self.kind), **values}

    def _to_json_values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def _from_json_values(cls, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the class that a JSON object has; others are left out."""
        required = {field.name for field in fields(cls) if field.default is MISSING}
        names = [field.name for field in fields(cls)]
        return {name: line[name] for name in names if name in line or name in required}


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """A driver starts the run or resumes it.

    Attributes:
        changed: the arguments that differ from those of the driver before: of each name the old
            and the new value, and under `train` the lines of a diff of the training function,
            or `(no source)` for a function whose source is unknown.
    """

    kind = EventKind.START
    changed: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class NewTrial:
    """A trial that is added to a run.

    Attributes:
        number: the place of the trial in the run, from 0.
        params: the parameters; values that look like credentials are masked.
        seed: the seed of the trial.
        configuration: the number of the configuration; None means the number of the trial.
        member: the member of a population that the trial trains; None without a population.
        parent: the trial from whose checkpoint the trial begins; None for none of this run.
    """

    number: int
    params: dict[str, Any]
    seed: int
    configuration: int | None = None
    member: int | None = None
    parent: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrialsAdded(Event):
    """Trials are added to the run; they are WAITING."""

    kind = EventKind.TRIALS
    trials: Sequence[NewTrial]

    def _to_json_values(self) -> dict[str, Any]:
        trials = [
            {name: value for name, value in asdict(trial).items() if value is not None}
            for trial in self.trials
        ]
        return {**super()._to_json_values(), "trials": trials}

    @classmethod
    def _from_json_values(cls, line: Mapping[str, Any]) -> dict[str, Any]:
        trials = [
            NewTrial(
                number=trial["number"],
                params=trial["params"],
                seed=trial["seed"],
                configuration=trial.get("configuration"),
                member=trial.get("member"),
                parent=trial.get("parent"),
            )
            for trial in line["trials"]
        ]
        return {**super()._from_json_values(line), "trials": trials}


@dataclass(frozen=True, kw_only=True)
class TrialChanged(Event):
    """A trial changes its state.

    The value, the error and the failure of the trial become those of the event, also if they are
    None. Its other fields stay as they were if they are None in the event.

    Attributes:
        number: the number of the trial.
        state: the new state.
        attempt: the number of the attempt, from 0; -1 before the first attempt.
        value: the value of the metric.
        params: the parameters.
        metrics: the last value of each metric.
        outputs: the values that the training function returned, by name.
        shape: the shape of the returned value, see `Trial.result`.
        error: the error message; its first line is a summary.
        failure: the kind of a failure, see `Failure`.
        usage: the fields of `Usage`.
        host: the name of the host on which the attempt ended.
        ended: seconds since 1970 at which the attempt ended, if it ended before the event.
        note: a remark about a result that is complete, such as files that could not be copied, or a
            returned object that was not kept; or why a trial is PRUNED.
    """

    kind = EventKind.TRIAL
    number: int
    state: TrialState
    attempt: int | None = None
    value: float | None = None
    params: dict[str, Any] | None = None
    metrics: dict[str, float] | None = None
    outputs: dict[str, Any] | None = None
    shape: str | None = None
    error: str | None = None
    failure: str | None = None
    usage: Mapping[str, float] | None = None
    host: str | None = None
    ended: float | None = None
    note: str | None = None

    def _to_json_values(self) -> dict[str, Any]:
        return {**super()._to_json_values(), "state": str(self.state)}

    @classmethod
    def _from_json_values(cls, line: Mapping[str, Any]) -> dict[str, Any]:
        return {**super()._from_json_values(line), "state": TrialState(line["state"])}


@dataclass(frozen=True, kw_only=True)
class ParameterSuggested(Event):
    """A sampler suggests a parameter that the objective has requested.

    Attributes:
        number: the number of the trial.
        name: the name of the parameter.
        value: the suggested value.
        distribution: the distribution of the parameter, as JSON in Optuna's format.
    """

    kind = EventKind.SUGGESTED
    number: int
    name: str
    value: Any
    distribution: str


@dataclass(frozen=True, kw_only=True)
class ReportsReceived(Event):
    """The study receives values that running trials have reported.

    Attributes:
        reports: the number of the trial, the step and the value of each report, in the order in
            which the study received them.
        numbers: the number of each report in its trial, from 0, for a pruner that counts reports;
            None for a pruner that counts steps.
        others: the values of the other metrics in each report, for a search with several metrics,
            of which `reports` has the first.
        stops: the number of each trial that is stopped or paused at one of these reports, and why,
            for a search with several metrics or a pruner that promotes trials.
    """

    kind = EventKind.REPORTS
    reports: Sequence[tuple[int, int, float]]
    numbers: Sequence[int] | None = None
    others: Sequence[Sequence[float]] | None = None
    stops: Sequence[tuple[int, str]] | None = None

    @classmethod
    def _from_json_values(cls, line: Mapping[str, Any]) -> dict[str, Any]:
        reports = [(number, step, value) for number, step, value in line["reports"]]
        return {**super()._from_json_values(line), "reports": reports}


@dataclass(frozen=True, kw_only=True)
class AttributesStored(Event):
    """The study receives the result of a trial, and its sampler stores attributes of the trial.

    Attributes:
        number: the number of the trial.
        attrs: the attributes.
    """

    kind = EventKind.ATTRIBUTES
    number: int
    attrs: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StopRequested(Event):
    """The pruner stops a running trial.

    Attributes:
        number: the number of the trial.
    """

    kind = EventKind.STOP
    number: int


@dataclass(frozen=True, kw_only=True)
class CommandHandled(Event):
    """The driver carries out or refuses a command of a user.

    Attributes:
        action: the command, see `sparkdl.runs.commands.Command`.
        arguments: its arguments; values that look like credentials are masked.
        by: the user and the host that gave the command, such as `ann@laptop`.
        pid: the process that gave the command.
        id: the name of the file of the command, without its suffix; None for a command of the
            driver's own process.
        asked: seconds since 1970 at which the command was given, by the clock of that host.
        refused: the reason for which the command was refused; None if it was carried out.
        number: the number of the trial that the command has added.
    """

    kind = EventKind.CONTROL
    action: str
    arguments: Mapping[str, Any]
    by: str
    pid: int
    id: str | None = None
    asked: float | None = None
    refused: str | None = None
    number: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExecutorExcluded(Event):
    """An executor gets no more trials of the run.

    Attributes:
        executor: the id of the executor.
        host: its host.
        reason: the failure of the trials that ran there.
        trials: the numbers of these trials, which run again on other executors.
    """

    kind = EventKind.EXCLUDED
    executor: str
    host: str
    reason: str
    trials: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class RankSlow(Event):
    """The other ranks of a gang wait for a rank in each step.

    Attributes:
        number: the number of the trial.
        rank, name, host: the rank, its name such as `worker 1`, and its host.
        wait_s: seconds for which the others wait in each step.
        step_s: seconds of a step.
        waits_for_rows: it waits for its rows; False if it computes, None if that is not known.
    """

    kind = EventKind.SLOW
    number: int
    rank: int
    name: str
    host: str
    wait_s: float
    step_s: float
    waits_for_rows: bool | None = None


@dataclass(frozen=True, kw_only=True)
class RankMoved(Event):
    """A slow rank goes on at another host, or cannot.

    Attributes:
        number, rank, name: see `RankSlow`.
        host: the host that it leaves.
        target: the host at which it goes on; None if it stays.
        reason: the reason for which it stays.
    """

    kind = EventKind.MOVED
    number: int
    rank: int
    name: str
    host: str
    target: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class GangResized(Event):
    """A gang that grows into idle slots has another number of ranks, or cannot grow.

    Attributes:
        number: the number of the trial.
        before, after: the numbers of ranks; equal if the gang cannot grow.
        reason: the reason.
    """

    kind = EventKind.RESIZED
    number: int
    before: int
    after: int
    reason: str


GangEvent: TypeAlias = RankSlow | RankMoved | GangResized


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """The run ends.

    Attributes:
        state: the state of the run.
        reason: the reason for which it ended early.
        duration_s: seconds since the driver started or resumed the run.
        idle: a sentence about the time in which slots were unused.
        timeline: a sentence about the parts of a step, of a run with `timeline=True`.
    """

    kind = EventKind.END
    state: RunState
    reason: str | None = None
    duration_s: float | None = None
    idle: str | None = None
    timeline: str | None = None

    def _to_json_values(self) -> dict[str, Any]:
        return {**super()._to_json_values(), "state": str(self.state)}

    @classmethod
    def _from_json_values(cls, line: Mapping[str, Any]) -> dict[str, Any]:
        return {**super()._from_json_values(line), "state": RunState(line["state"])}


_TYPES: dict[str, type[Event]] = {
    str(event_type.kind): event_type
    for event_type in (
        RunStarted,
        TrialsAdded,
        TrialChanged,
        ParameterSuggested,
        ReportsReceived,
        AttributesStored,
        StopRequested,
        CommandHandled,
        ExecutorExcluded,
        RankSlow,
        RankMoved,
        GangResized,
        RunEnded,
    )
}


def event_from_dict(line: Mapping[str, Any]) -> Event:
    """Create the event of a JSON object that `Event.to_dict` returned.

    Keys without a field are ignored, as a later version of sparkdl may write more.

    Raises:
        KeyError: if a required key is missing.
        ValueError: if the kind or a state is unknown.

    Example:
        >>> event_from_dict({"time": 1.5, "event": "stop", "number": 3})
        StopRequested(time=1.5, number=3)
        >>> StopRequested(number=3).to_dict()
        {'event': 'stop', 'number': 3}
    """
    kind = EventKind(line["event"])
    event_type = _TYPES[str(kind)]
    return event_type(**event_type._from_json_values(line))
