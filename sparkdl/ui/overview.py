"""Runs on the driver. The head of a run on the page: its state, its texts and its figures."""

from collections.abc import Sequence
from typing import Any

from sparkdl.models.version import ModelVersion
from sparkdl.runs.run import Run
from sparkdl.runs.states import RunState
from sparkdl.runs.views.figures import FIGURES
from sparkdl.runs.views.report import PARTS, part, sections
from sparkdl.ui.live_runs import Snapshot
from sparkdl.ui.model_versions import row
from sparkdl.ui.plain import plain_value


def overview(snapshot: Snapshot, versions: Sequence[ModelVersion]) -> dict[str, Any]:
    """Return what the page of a run begins with.

    Args:
        snapshot: the run.
        versions: the versions of models that come from the run.
    """
    run = snapshot.run
    trials = list(run.trials)
    metric = run.metric or "value"
    metrics = dict.fromkeys(name for trial in trials for name in trial.metrics)
    # A plain number is reported as `value`, and counts as the metric.
    if not any({"value", metric} <= trial.metrics.keys() for trial in trials):
        metrics.pop("value", None)
    annotations = run.annotations()
    best = run.top(1)
    return {
        "id": run.id,
        "name": run.name,
        "state": str(run.state),
        "is_paused": run.is_paused,
        "is_search": run.is_search,
        "is_distributed": run.is_distributed,
        "counts": run.counts(),
        "num_to_come": _num_to_come(run),
        "metric": metric,
        "params": list(dict.fromkeys(name for trial in trials for name in trial.params)),
        "metrics": [name for name in metrics if name != metric],
        "best": {n: plain_value(v) for n, v in best[0].params.items()} if best else {},
        "tags": annotations.tags,
        "notes": [vars(note) for note in annotations.notes],
        "reproduces": run.reproduces,
        "models": [row(version) for version in versions],
        "sections": sections(run),
        "figures": list(FIGURES),
        "parts": list(PARTS),
    }


def _num_to_come(run: Run) -> int:
    """Return the number of trials that a search has not created yet, as far as that is known."""
    if run.state != RunState.RUNNING or run.num_trials is None:
        return 0
    return max(0, run.num_trials * run.repeats - len(run.trials))


def figure(snapshot: Snapshot, name: str) -> str | None:
    """Return a figure as plotly's JSON; None if there is none, or the run lacks the data."""
    if name not in FIGURES:
        return None
    if name not in snapshot.figures:
        plot = FIGURES[name][0](snapshot.run)
        snapshot.figures[name] = None if plot is None else str(plot.to_json())
    return snapshot.figures[name]


def part_of(snapshot: Snapshot, name: str) -> str | None:
    """Return a section of the report that is made of files beside the journal; None for no such."""
    return part(snapshot.run, name) if name in PARTS else None
