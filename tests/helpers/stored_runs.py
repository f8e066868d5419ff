"""Runs that have ended, made without a cluster."""

import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import sparkdl.experiment  # noqa: F401 Runs have the actions that it sets.
from sparkdl.files.jsonl import from_json
from sparkdl.runs.events import Event, RunEnded, TrialChanged
from sparkdl.runs.opening import OpenRun, RunDescription, open_run
from sparkdl.runs.states import RunState, TrialState

__all__ = ["ended", "large", "shift", "started"]


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


def large(root: str, run_id: str, num_trials: int, num_slots: int = 8) -> OpenRun:
    """A search that is COMPLETE, with trials in several states; the values depend on `lr` most."""
    chance = random.Random(7)
    params = [
        {
            "lr": 10 ** chance.uniform(-5, -1),
            "units": chance.choice([16, 32, 64, 128]),
            "act": chance.choice(["relu", "tanh", "gelu"]),
            "dropout": chance.uniform(0.0, 0.6),
        }
        for _ in range(num_trials)
    ]
    opened = started(root, run_id, params, name="large")
    begun_s = time.time() - 3600
    free = [begun_s] * num_slots
    events: list[Event] = []
    for number, chosen in enumerate(params):
        slot = free.index(min(free))
        seconds = chance.uniform(1.0, 4.0)
        start_s, free[slot] = free[slot], free[slot] + seconds
        value = 0.95 - 0.06 * (math.log10(chosen["lr"]) + 2.5) ** 2 - 0.2 * chosen["dropout"]
        value += chance.gauss(0.0, 0.02)
        state = chance.choices(
            [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED], [80, 18, 2]
        )[0]
        is_complete = state == TrialState.COMPLETE
        value -= 0.0 if is_complete else 0.3  # The last report before the end.
        error = f"ValueError: loss is nan in batch {number % 7}\n\nTraceback ...\n  train()\n"
        running = TrialChanged(number=number, state=TrialState.RUNNING, attempt=0)
        end = TrialChanged(
            number=number,
            state=state,
            attempt=0,
            value=value if is_complete else None,
            metrics={"accuracy": value, "loss": 1 - value},
            outputs={"accuracy": value, "loss": 1 - value} if is_complete else None,
            error=error if state == TrialState.FAILED else None,
            failure="exception" if state == TrialState.FAILED else None,
            usage={
                "queued_s": 0.2,
                "starting_s": 0.1,
                "running_s": seconds - 0.1,
                "cpu_s": seconds,
            },
        )
        events += [replace(running, time=start_s), replace(end, time=start_s + seconds)]
    opened.record(*events)
    opened.close(RunEnded(state=RunState.COMPLETE, duration_s=max(free) - begun_s))
    return opened


def shift(path: str, **changes: Any) -> None:
    """Change the summary of a run, such as the time at which the run started."""
    file = Path(path, "summary.json")
    file.write_text(json.dumps({**from_json(file.read_bytes()), **changes}))
