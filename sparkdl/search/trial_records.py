"""Runs on the driver (pure). Read from a journal what a study knew about each trial."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.runs.events import (
    AttributesStored,
    Event,
    ParameterSuggested,
    ReportsReceived,
    TrialChanged,
)
from sparkdl.runs.states import Failure, TrialState

__all__ = ["TrialRecord", "read_records"]


@dataclass(frozen=True)
class TrialRecord:
    """The part of a trial's history that only the study needs, as read from the journal.

    Attributes:
        reports: reported values of the metric, by step, or for a pruner that counts reports by
            the number of the report.
        last: the last step, and the number of its report.
        suggested: requested parameters of a search without a space dict: the value of each, and
            the JSON of the distribution from which it was sampled.
        attrs: system attributes that the sampler and the pruner stored with the trial.
    """

    reports: dict[int, float] = field(default_factory=dict)
    last: list[tuple[int, int]] = field(default_factory=list)
    suggested: dict[str, tuple[Any, str]] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)


def read_records(events: Sequence[Event]) -> dict[int, TrialRecord]:
    """Return the records of all trials in a journal, by trial number."""
    records: dict[int, TrialRecord] = {}
    for event in events:
        match event:
            case ReportsReceived():
                numbers = event.numbers or [step for _, step, _ in event.reports]
                for (trial, step, value), number in zip(event.reports, numbers, strict=True):
                    record = records.setdefault(trial, TrialRecord())
                    record.reports.setdefault(number, value)
                    record.last[:] = [(step, number)]
            case ParameterSuggested():
                record = records.setdefault(event.number, TrialRecord())
                record.suggested[event.name] = (event.value, event.distribution)
            case AttributesStored():
                records.setdefault(event.number, TrialRecord()).attrs.update(event.attrs)
            case TrialChanged(state=TrialState.WAITING):
                if event.failure not in (None, Failure.LOST):
                    # The trial failed and starts from the beginning: its reports are discarded.
                    record = records.get(event.number, TrialRecord())
                    record.reports.clear()
                    record.last.clear()
    return records
