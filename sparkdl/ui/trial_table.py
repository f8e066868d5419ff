"""Runs on the driver. The table of trials on the page, of which each request gets a part."""

import math
import time
from collections.abc import Callable
from typing import Any

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.ui.live_runs import Snapshot
from sparkdl.ui.plain import plain_value

# The most rows of an answer, characters of a text in a cell, and metrics and parameters of a row.
MAX_ROWS = 200
MAX_TEXT = 200
MAX_NAMES = 40


def rows(
    snapshot: Snapshot, *, offset: int, sort: str, descending: bool, state: str, text: str
) -> dict[str, Any]:
    """Return some rows of the table.

    Args:
        snapshot: the run.
        offset: number of rows to leave out at the beginning.
        sort: `number`, `state`, `value`, `duration`, `training`, `attempts`, `error`, or the name
            of a parameter or a metric after `param:` or `metric:`. Trials without a value are last.
        descending: largest first.
        state: only trials in this state; empty for all.
        text: only trials that have each of these words in a parameter or the error.
    """
    trials = [t for t in list(snapshot.run.trials) if not state or t.state == state]
    for word in text.lower().split():
        trials = [t for t in trials if word in _text(t)]
    if (sort, descending) != ("number", False):
        trials = _sort(trials, _key(sort), descending)
    rows = [_row(t, t.number in snapshot.best) for t in trials[offset : offset + MAX_ROWS]]
    return {"total": len(trials), "offset": offset, "rows": rows, "size": MAX_ROWS}


def _text(trial: Trial) -> str:
    params = " ".join(f"{name}={value}" for name, value in trial.params.items())
    return f"{params} {trial.summary} {trial.note or ''}".lower()


def _sort(trials: list[Trial], key: Callable[[Trial], Any], descending: bool) -> list[Trial]:
    pairs = [(key(trial), trial) for trial in trials]
    places = [(_comparable(value), trial) for value, trial in pairs if _has_place(value)]
    places.sort(key=lambda pair: pair[0], reverse=descending)
    return [trial for _, trial in places] + [
        trial for value, trial in pairs if not _has_place(value)
    ]


def _has_place(value: Any) -> bool:
    """Return True for a value that is before or behind others, unlike that of a divergence."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _key(sort: str) -> Callable[[Trial], Any]:
    kind, _, name = sort.partition(":")
    if kind == "param":
        return lambda trial: trial.params.get(name)
    if kind == "metric":
        return lambda trial: trial.metrics.get(name)
    fields: dict[str, Callable[[Trial], Any]] = {
        "state": lambda trial: str(trial.state),
        "value": lambda trial: trial.last_value,
        "duration": lambda trial: duration_of(trial) or None,
        "training": lambda trial: trial.usage.running_s or None,
        "attempts": lambda trial: trial.attempts,
        "error": lambda trial: trial.summary or trial.note,
    }
    return fields.get(kind, lambda trial: trial.number)


def _comparable(value: Any) -> tuple[int, Any]:
    """Return a key by which values of any kinds can be sorted: numbers before texts."""
    if isinstance(value, int | float):
        return 0, value
    return 1, str(value)


def _row(trial: Trial, is_best: bool) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": str(trial.state),
        "is_best": is_best,
        "value": plain_value(trial.last_value),
        "metrics": _cells(trial.metrics),
        "params": _cells(trial.params),
        "duration": round(duration_of(trial), 1),
        "training": round(trial.usage.running_s, 1),
        "attempts": trial.attempts,
        "error": (trial.summary or trial.note or "")[:MAX_TEXT],
    }


def duration_of(trial: Trial) -> float:
    """Return the duration of a trial; of a running one, the time since its attempt started."""
    if trial.state == TrialState.RUNNING and trial.spans:
        return trial.duration_s + max(0.0, time.time() - trial.spans[-1][0])
    return trial.duration_s


def _cells(values: dict[str, Any]) -> dict[str, Any]:
    cells = {}
    for name, value in list(values.items())[:MAX_NAMES]:
        cell = plain_value(value)
        cells[name] = cell[:MAX_TEXT] if isinstance(cell, str) else cell
    return cells
