"""Runs on the driver. The summary of a run that has ended, from which lists of runs are made."""

import json
import math
from collections.abc import Mapping
from typing import Any

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json, to_json
from sparkdl.files.layout import FORMAT, RunPaths
from sparkdl.runs.run import Run
from sparkdl.runs.trial import Trial

_STATES = ("COMPLETE", "FAILED", "PRUNED")
COLUMNS = (
    *("run", "kind", "state", "started", "name", "user", "tags", "note", "trials", *_STATES),
    *("metric", "direction", "best", "seconds", "git_commit"),
)

# What the columns of parameters and metrics begin with.
PARAM, METRIC = "param.", "metric."

# A summary has no more parameters and metrics than these, and of long texts the beginning.
MAX_VALUES, MAX_TEXT = 100, 200


def summarize(run: Run, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a run in a list of runs, without its tags and notes.

    The parameters and metrics are those of the best trial. Of several trials without a best one,
    the parameters are those that all trials have in common.

    Args:
        run: the run.
        description: the content of `run.json`.
    """
    best = run.top(1)
    counts = run.counts()
    row = {
        "run": run.id,
        "kind": run.kind,
        "state": str(run.state),
        "started": description["created"],
        "name": run.name,
        "user": description.get("user"),
        "trials": len(run.trials),
        **{state: counts.get(state, 0) for state in _STATES},
        "metric": run.metric,
        "direction": run.direction,
        "best": best[0].value if best else None,
        "seconds": run.duration_s,
        "git_commit": description.get("git_commit"),
    }
    row |= {f"{PARAM}{name}": value for name, value in _params(run, best).items()}
    if best or len(run.trials) == 1:
        metrics = list((best or run.trials)[0].metrics.items())[:MAX_VALUES]
        row |= {f"{METRIC}{name}": value for name, value in metrics}
    return row


def _params(run: Run, best: list[Trial]) -> dict[str, Any]:
    if not run.trials:
        return {}
    params = list((best or run.trials)[0].params.items())[:MAX_VALUES]
    if not best:
        params = [(k, v) for k, v in params if all(t.params.get(k) == v for t in run.trials)]
    return {name: _short(value) for name, value in params}


def _short(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)[:MAX_TEXT]


def write_summary(run: Run) -> None:
    """Write the summary of a run that has ended.

    Raises:
        OSError: if the run directory cannot be written.
    """
    paths = RunPaths(run.path)
    description = json.loads(storage.read(paths.run))
    storage.write(paths.summary, to_json({"format": FORMAT, **summarize(run, description)}))


def parse_summary(data: bytes) -> dict[str, Any] | None:
    """Return the row in a summary; None if there is none, or if it has another format.

    Earlier summaries have no user, parameters and metrics: their runs would be missing from lists
    of runs that meet a condition, so the runs are read instead.
    """
    try:
        row: dict[str, Any] = from_json(data)
        return row if row.pop("format") == FORMAT and "user" in row else None
    except (ValueError, AttributeError, KeyError):
        return None
