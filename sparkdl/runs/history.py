"""Runs on the driver. Load runs from their directories."""

import json
from typing import TYPE_CHECKING, Any

from sparkdl import storage
from sparkdl.errors import RunNotFoundError
from sparkdl.runs.events import Event
from sparkdl.runs.journal import read_journal
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.owner import living_owner
from sparkdl.runs.run import Run
from sparkdl.runs.states import RunState, TrialState

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["history", "load", "read_description"]


def read_description(path: str) -> dict[str, Any]:
    """Return the content of `run.json`.

    Raises:
        RunNotFoundError: if there is no run at `path`.
    """
    try:
        description: dict[str, Any] = json.loads(storage.read(RunPaths(path).run))
    except (FileNotFoundError, NotADirectoryError):
        raise RunNotFoundError(
            f"no run at {path}: it holds no run.json. experiment.history() lists the runs below a "
            "root."
        ) from None
    return description


def replay(description: dict[str, Any], path: str, events: list[Event]) -> Run:
    """Create a run from its description and the events of its journal."""
    names = ("id", "name", "kind", "metric", "direction")
    run = Run(path=path, **{name: description[name] for name in names})
    run.objectives = description.get("objectives", {})
    run.repeats = description.get("repeats", 1)
    request = description.get("request", {})
    run.is_search = request.get("search") is not None
    run.is_distributed = request.get("is_distributed", request.get("is_gang", False))
    for event in events:
        run.apply(event)
    return run


def load(path: str) -> Run:
    """Load a run. A run whose driver died is FAILED; its finished trials are complete.

    Args:
        path: the run's directory: `run.path`, which is also the last line of the run's table.

    Raises:
        RunNotFoundError: if there is no run at `path`.
    """
    path = storage.absolute(path)
    run = replay(read_description(path), path, read_journal(RunPaths(path).journal))
    if run.state == RunState.RUNNING and living_owner(RunPaths(path)) is None:
        run.state, run.reason = RunState.FAILED, "its driver ended before the run was finished"
        for trial in run.trials:
            if trial.state == TrialState.RUNNING:
                trial.state = TrialState.LOST
    return run


def history(root: str) -> "pd.DataFrame":
    """Return a table of the runs below a root, newest first, with one row per run."""
    rows = []
    for name in storage.list_names(root):
        path = storage.join(root, name)
        try:
            description = read_description(path)
            run = load(path)
        except (RunNotFoundError, ValueError, KeyError, IndexError):
            continue  # The folder is no run, or its files are damaged.
        best = run.top(1)
        rows.append(
            {
                "run": run.id,
                "kind": run.kind,
                "state": str(run.state),
                "started": description["created"],
                "trials": len(run.trials),
                **{str(state): run.counts().get(str(state), 0) for state in ("COMPLETE", "FAILED")},
                "metric": run.metric,
                "best": best[0].value if best else None,
                "seconds": run.duration_s,
                "path": path,
            }
        )
    import pandas as pd

    frame = pd.DataFrame(rows)
    return frame.sort_values("started", ascending=False, ignore_index=True) if rows else frame
