"""Runs on the driver. The summary of a run that has ended, from which lists of runs are made."""

import json
from typing import Any

from sparkdl import storage
from sparkdl.jsonl import from_json, to_json
from sparkdl.runs.layout import FORMAT, RunPaths
from sparkdl.runs.run import Run

__all__ = ["COLUMNS", "parse_summary", "summarize", "write_summary"]

_STATES = ("COMPLETE", "FAILED", "PRUNED")
COLUMNS = (
    *("run", "kind", "state", "started", "trials", *_STATES),
    *("metric", "direction", "best", "seconds"),
)


def summarize(run: Run, created: str) -> dict[str, Any]:
    """Return the row of a run in a list of runs.

    Args:
        run: the run.
        created: the time of its creation, as `run.json` has it.
    """
    best = run.top(1)
    counts = run.counts()
    values = (
        *(run.id, run.kind, str(run.state), created, len(run.trials)),
        *(counts.get(state, 0) for state in _STATES),
        *(run.metric, run.direction, best[0].value if best else None, run.duration_s),
    )
    return dict(zip(COLUMNS, values, strict=True))


def write_summary(run: Run) -> None:
    """Write the summary of a run that has ended.

    Raises:
        OSError: if the run directory cannot be written.
    """
    paths = RunPaths(run.path)
    created = json.loads(storage.read(paths.run))["created"]
    row = {"format": FORMAT, **summarize(run, created)}
    storage.write(paths.summary, to_json(row))


def parse_summary(data: bytes) -> dict[str, Any] | None:
    """Return the row in a summary; None if there is none, or if it has another format."""
    try:
        row: dict[str, Any] = from_json(data)
        return row if row.pop("format") == FORMAT else None
    except (ValueError, AttributeError, KeyError):
        return None
