"""Runs that have ended, made without a cluster."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkdl.jsonl import from_json
from sparkdl.runs.events import Event, RunEnded, TrialChanged
from sparkdl.runs.opening import OpenRun, RunDescription, open_run
from sparkdl.runs.states import RunState, TrialState

__all__ = ["ended", "shift", "started"]


def started(
    root: str,
    run_id: str,
    params: Sequence[dict[str, Any]] = ({"lr": 0.1}, {"lr": 0.2}),
    metric: str | None = "accuracy",
    **facts: Any,
) -> OpenRun:
    """A run that this process owns, whose trials wait."""
    description = RunDescription(
        id=run_id,
        name=facts.pop("name", "nightly"),
        kind="launch",
        description=None,
        metric=metric,
        direction=facts.pop("direction", "max"),
        params=list(params),
        seed=3,
        secrets=(),
        facts={"user": "ann", "git_commit": "abc", **facts},
    )
    return open_run(root, description, "error")


def ended(
    root: str,
    run_id: str,
    values: Sequence[float] = (0.5, 0.75),
    params: Sequence[dict[str, Any]] = ({"lr": 0.1}, {"lr": 0.2}),
    **facts: Any,
) -> OpenRun:
    """A run that is COMPLETE; trial i has the i-th value."""
    opened = started(root, run_id, params, **facts)
    events: list[Event] = []
    for number, value in enumerate(values):
        events += [
            TrialChanged(number=number, state=TrialState.RUNNING, attempt=0),
            TrialChanged(
                number=number,
                state=TrialState.COMPLETE,
                attempt=0,
                value=value,
                metrics={"accuracy": value, "loss": 1 - value},
                outputs={"accuracy": value, "loss": 1 - value},
                shape="dict",
                usage={"running_s": 2.0},
            ),
        ]
    opened.record(*events)
    opened.close(RunEnded(state=RunState.COMPLETE, duration_s=4.0))
    return opened


def shift(path: str, **changes: Any) -> None:
    """Change the summary of a run, such as the time at which the run started."""
    file = Path(path, "summary.json")
    file.write_text(json.dumps({**from_json(file.read_bytes()), **changes}))
