"""Runs on the driver. Several runs over one another on the page."""

from collections.abc import Sequence
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.runs.views.comparison import Comparison
from sparkdl.ui.live_runs import Snapshot


def differences(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """Return what differs between runs, see `Comparison.to_dict`.

    Raises:
        ConfigError: if there are fewer than two runs.
    """
    comparison = Comparison(_runs(snapshots)).to_dict()
    states = {snapshot.run.id: str(snapshot.run.state) for snapshot in snapshots}
    folders = {snapshot.run.id: snapshot.run.path.rsplit("/", 1)[1] for snapshot in snapshots}
    goals = {(snapshot.run.metric, snapshot.run.direction) for snapshot in snapshots}
    return {
        **comparison,
        "states": states,
        # The addresses of the runs on the page.
        "folders": folders,
        # The direction of the metric that all runs share.
        "direction": snapshots[0].run.direction if len(goals) == 1 else None,
        "figures": ["history", "curves"],
    }


def figure(snapshots: Sequence[Snapshot], name: str) -> str | None:
    """Return a figure as plotly's JSON; None if the runs lack the data.

    Raises:
        ConfigError: if there are fewer than two runs.
    """
    runs = _runs(snapshots)
    try:
        return str(Comparison(runs).figure(name).to_json())
    except ConfigError:
        return None


def _runs(snapshots: Sequence[Snapshot]) -> list[Any]:
    runs = list({snapshot.run.id: snapshot.run for snapshot in snapshots}.values())
    if len(runs) < 2:
        raise ConfigError("two or more runs are needed for a comparison.")
    return runs
