"""Events keep the format of the journal, so that run directories stay readable."""

import json
from typing import Any

import pytest

from sparkdl.runs.events import (
    AttributesStored,
    CommandHandled,
    Event,
    EventKind,
    ExecutorExcluded,
    GangResized,
    NewTrial,
    ParameterSuggested,
    RankMoved,
    RankSlow,
    ReportsReceived,
    RunEnded,
    RunStarted,
    StopRequested,
    TrialChanged,
    TrialsAdded,
    event_from_dict,
)
from sparkdl.runs.states import RunState, TrialState

# Lines of the first journals, without null values, and their events.
LINES: list[tuple[dict[str, Any], Event]] = [
    ({"time": 1.0, "event": "start"}, RunStarted(time=1.0)),
    (
        {"time": 1.0, "event": "start", "changed": {"num_trials": [4, 8]}},
        RunStarted(time=1.0, changed={"num_trials": [4, 8]}),
    ),
    (
        {
            "time": 2.0,
            "event": "trials",
            "trials": [
                {"number": 0, "params": {"lr": 0.1}, "seed": 7},
                {"number": 1, "params": {"lr": None}, "seed": 8, "configuration": 0},
            ],
        },
        TrialsAdded(
            time=2.0,
            trials=[
                NewTrial(number=0, params={"lr": 0.1}, seed=7),
                NewTrial(number=1, params={"lr": None}, seed=8, configuration=0),
            ],
        ),
    ),
    (
        {"time": 3.0, "event": "trial", "number": 0, "state": "RUNNING", "attempt": 0},
        TrialChanged(time=3.0, number=0, state=TrialState.RUNNING, attempt=0),
    ),
    (
        {
            "time": 4.0,
            "event": "trial",
            "number": 0,
            "state": "COMPLETE",
            "attempt": 0,
            "value": 0.5,
            "metrics": {"loss": 0.5},
            "outputs": {"value": 0.5, "note": None},
            "usage": {"running_s": 1.0, "queued_s": 0.2},
        },
        TrialChanged(
            time=4.0,
            number=0,
            state=TrialState.COMPLETE,
            attempt=0,
            value=0.5,
            metrics={"loss": 0.5},
            outputs={"value": 0.5, "note": None},
            usage={"running_s": 1.0, "queued_s": 0.2},
        ),
    ),
    (
        {
            "time": 5.0,
            "event": "trial",
            "number": 1,
            "state": "WAITING",
            "attempt": -1,
            "error": "ValueError: no",
            "failure": "exception",
            "ended": 4.5,
        },
        TrialChanged(
            time=5.0,
            number=1,
            state=TrialState.WAITING,
            attempt=-1,
            error="ValueError: no",
            failure="exception",
            ended=4.5,
        ),
    ),
    (
        {
            "time": 6.0,
            "event": "suggested",
            "number": 1,
            "name": "kind",
            "value": None,
            "distribution": "{}",
        },
        ParameterSuggested(time=6.0, number=1, name="kind", value=None, distribution="{}"),
    ),
    (
        {"time": 7.0, "event": "reports", "reports": [[0, 3, 0.25], [1, 0, 0.5]]},
        ReportsReceived(time=7.0, reports=[(0, 3, 0.25), (1, 0, 0.5)]),
    ),
    (
        {"time": 8.0, "event": "told", "number": 1, "attrs": {"cma": "ab"}},
        AttributesStored(time=8.0, number=1, attrs={"cma": "ab"}),
    ),
    ({"time": 9.0, "event": "stop", "number": 1}, StopRequested(time=9.0, number=1)),
    (
        {
            "time": 9.5,
            "event": "control",
            "action": "enqueue",
            "arguments": {"params": {"x": 1}},
            "by": "ann@laptop",
            "pid": 17,
            "id": "0017-ab",
            "asked": 9.25,
            "refused": "no",
            "number": 3,
        },
        CommandHandled(
            time=9.5,
            action="enqueue",
            arguments={"params": {"x": 1}},
            by="ann@laptop",
            pid=17,
            id="0017-ab",
            asked=9.25,
            refused="no",
            number=3,
        ),
    ),
    (
        {
            "time": 9.75,
            "event": "excluded",
            "executor": "2",
            "host": "gpu-4",
            "reason": "the GPU fell off the bus",
            "trials": [3, 5],
        },
        ExecutorExcluded(
            time=9.75,
            executor="2",
            host="gpu-4",
            reason="the GPU fell off the bus",
            trials=[3, 5],
        ),
    ),
    (
        {
            "time": 9.8,
            "event": "slow",
            "number": 0,
            "rank": 2,
            "name": "worker 2",
            "host": "node-7",
            "wait_s": 0.12,
            "step_s": 0.245,
            "waits_for_rows": False,
        },
        RankSlow(
            time=9.8,
            number=0,
            rank=2,
            name="worker 2",
            host="node-7",
            wait_s=0.12,
            step_s=0.245,
            waits_for_rows=False,
        ),
    ),
    (
        {
            "time": 9.9,
            "event": "moved",
            "number": 0,
            "rank": 2,
            "name": "worker 2",
            "host": "node-7",
            "target": "node-8",
        },
        RankMoved(time=9.9, number=0, rank=2, name="worker 2", host="node-7", target="node-8"),
    ),
    (
        {
            "time": 9.95,
            "event": "resized",
            "number": 0,
            "before": 2,
            "after": 4,
            "reason": "slots were idle",
        },
        GangResized(time=9.95, number=0, before=2, after=4, reason="slots were idle"),
    ),
    (
        {
            "time": 10.0,
            "event": "end",
            "state": "CANCELLED",
            "reason": "interrupted",
            "duration_s": 2.5,
            "idle": "idle for 1 s",
            "timeline": "rank 1 waits",
        },
        RunEnded(
            time=10.0,
            state=RunState.CANCELLED,
            reason="interrupted",
            duration_s=2.5,
            idle="idle for 1 s",
            timeline="rank 1 waits",
        ),
    ),
]


def test_lines_have_every_kind() -> None:
    assert {event.kind for _, event in LINES} == set(EventKind)


@pytest.mark.parametrize(("line", "event"), LINES, ids=lambda item: str(item)[:40])
def test_events_and_lines_are_equivalent(line: dict[str, Any], event: Event) -> None:
    assert event_from_dict(line) == event
    assert json.loads(json.dumps(event.to_dict())) == line
    assert list(event.to_dict())[:2] == ["time", "event"]


def test_null_values_of_first_journals_are_read() -> None:
    line = {"time": 1.0, "event": "end", "state": "COMPLETE", "reason": None, "idle": None}
    assert event_from_dict(line) == RunEnded(time=1.0, state=RunState.COMPLETE)


def test_unknown_keys_are_ignored() -> None:
    line = {"time": 1.0, "event": "stop", "number": 2, "later": True}
    assert event_from_dict(line) == StopRequested(time=1.0, number=2)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ({"time": 1.0}, KeyError),
        ({"event": "stop"}, KeyError),
        ({"event": "trial", "number": 1}, KeyError),
        ({"event": "unheard of"}, ValueError),
        ({"event": "end", "state": "ASLEEP"}, ValueError),
    ],
)
def test_a_damaged_event_raises(line: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        event_from_dict(line)
