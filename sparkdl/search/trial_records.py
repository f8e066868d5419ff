"""Runs on the driver (pure). Read from a journal what a study knew about each trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sparkdl.runs.events import (
    AttributesStored,
    Event,
    ParameterSuggested,
    ReportsReceived,
    RunStarted,
    StopRequested,
    TrialChanged,
)
from sparkdl.runs.states import Failure, TrialState
from sparkdl.runs.trial import Trial


@dataclass(frozen=True)
class TrialRecord:
    """The part of a trial's history that only the study needs, as read from the journal.

    Attributes:
        reports: reported values, one of each metric, by step, or for a pruner that counts reports
            by the number of the report.
        last: the last step, and the number of its report.
        stops: the reason for which the pruner has stopped the trial at its last report, for a
            search with several metrics or a pruner that promotes trials.
        suggested: requested parameters of a search without a space dict: the value of each, and
            the JSON of the distribution from which it was sampled.
        attrs: system attributes that the sampler and the pruner stored with the trial.
    """

    reports: dict[int, tuple[float, ...]] = field(default_factory=dict)
    last: list[tuple[int, int]] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    suggested: dict[str, tuple[Any, str]] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)


def numbers_of(event: ReportsReceived) -> Sequence[int]:
    """Return the number of each report of an event; its step for a pruner that counts steps."""
    return event.numbers or [step for _, step, _ in event.reports]


def values_of(event: ReportsReceived) -> Sequence[tuple[float, ...]]:
    """Return the values of each report of an event, one of each metric."""
    others = event.others or [()] * len(event.reports)
    return [(value, *more) for (_, _, value), more in zip(event.reports, others, strict=True)]


def reports_event(
    observed: Sequence[tuple[Trial, int, int, tuple[float, ...]]],
    is_counted: bool,
    why: Mapping[int, str | None] = MappingProxyType({}),
) -> ReportsReceived:
    """Return the event of reports that the study has received.

    Args:
        observed: the trial, the step, the number and the values of each report.
        is_counted: the study hears the numbers of the reports, in place of their steps.
        why: the reason for which a trial is stopped, by its number.
    """
    stops = [(number, reason) for number, reason in why.items() if reason]
    others = [values[1:] for *_, values in observed]
    return ReportsReceived(
        reports=[(trial.number, step, values[0]) for trial, step, _, values in observed],
        numbers=[number for _, _, number, _ in observed] if is_counted else None,
        others=others if any(others) else None,
        stops=stops or None,
    )


def stopped_trials(events: Sequence[Event]) -> set[int]:
    """Return the numbers of the trials that the pruner has stopped at their last report."""
    stopped: set[int] = set()
    for event in events:
        match event:
            case StopRequested():
                stopped.add(event.number)
            case ReportsReceived():  # An objective may go on.
                stopped.difference_update(number for number, _, _ in event.reports)
            case TrialChanged(state=TrialState.WAITING):
                if event.failure not in (None, Failure.LOST):
                    stopped.discard(event.number)
    return stopped


def untold_trials(events: Sequence[Event]) -> set[int]:
    """Return the numbers of the trials whose driver was killed before the study knew their end."""
    numbers_in_study = {event.number for event in events if isinstance(event, AttributesStored)}
    untold: set[int] = set()
    for event, after in zip(events, [*events[1:], RunStarted()], strict=True):
        if isinstance(event, TrialChanged) and isinstance(after, RunStarted):
            untold |= {event.number} if event.state.is_final else set()
    return untold - numbers_in_study


def read_records(events: Sequence[Event]) -> dict[int, TrialRecord]:
    """Return the records of all trials in a journal, by trial number."""
    records: dict[int, TrialRecord] = {}
    for event in events:
        match event:
            case ReportsReceived():
                numbered = zip(event.reports, numbers_of(event), values_of(event), strict=True)
                for (trial, step, _), number, values in numbered:
                    record = records.setdefault(trial, TrialRecord())
                    record.reports.setdefault(number, values)
                    record.last[:] = [(step, number)]
                    record.stops.clear()
                for trial, reason in event.stops or ():
                    records[trial].stops[:] = [reason]
            case ParameterSuggested():
                record = records.setdefault(event.number, TrialRecord())
                record.suggested[event.name] = (event.value, event.distribution)
            case AttributesStored():
                records.setdefault(event.number, TrialRecord()).attrs.update(event.attrs)
            case TrialChanged(state=TrialState.PAUSED):  # It may go on later.
                records.setdefault(event.number, TrialRecord()).stops.clear()
            case TrialChanged(state=TrialState.WAITING):
                if event.failure not in (None, Failure.LOST):
                    # The trial failed and starts from the beginning: its reports are discarded.
                    record = records.get(event.number, TrialRecord())
                    record.reports.clear()
                    record.last.clear()
                    record.stops.clear()
    return records
