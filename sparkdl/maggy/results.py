"""Runs on the driver. Return the result of a run in the form of maggy."""

from typing import Any

from sparkdl.runs import Run
from sparkdl.runs.states import TrialState

__all__ = ["result_of"]


def result_of(run: Run, stops_early: bool) -> dict[str, Any]:
    """Return the best, the worst and the mean value of the trials of a run.

    A trial that was stopped early counts with the value that it reported last, and is never the
    best. A trial that failed does not count.

    Args:
        run: the run.
        stops_early: trials may have been stopped early.
    """
    ended = (TrialState.COMPLETE, TrialState.PRUNED)
    rows = [(trial.last_value, trial) for trial in run.trials if trial.state in ended]
    valued = [(value, trial) for value, trial in rows if value is not None]
    values = [value for value, _ in valued]
    pick = min if run.direction == "max" else max
    worst_value, worst = pick(valued, key=lambda row: row[0])
    best, early = run.best, [trial for _, trial in valued if trial.state == TrialState.PRUNED]
    return {
        "best_id": str(best.number),
        "best_val": best.value,
        "best_config": best.params,
        "best_hp": best.params,
        "worst_id": str(worst.number),
        "worst_val": worst_value,
        "worst_config": worst.params,
        "worst_hp": worst.params,
        "avg": sum(values) / len(values),
        "metric_list": values,
        "num_trials": len(values),
        "early_stopped": len(early) if stops_early else "n.a",
        "path": run.path,
    }
