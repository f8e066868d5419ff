"""Runs on the driver. The content of the page: parts of a run as values for JSON."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from sparkdl import storage
from sparkdl.runs.figures import FIGURES
from sparkdl.runs.report import sections
from sparkdl.runs.run import Run
from sparkdl.runs.trial import Trial
from sparkdl.runs.ui.live_runs import LiveRun

__all__ = ["figure", "log", "overview", "trials"]

# The most that one answer has of a log, and of the rows of a table.
MAX_LOG_BYTES = 1 << 16
MAX_ROWS = 500


def overview(live: LiveRun) -> dict[str, Any]:
    """Return the head of a run: its state, its counts and the texts of its report."""
    version, run = live.version, live.run
    trials = list(run.trials)  # A live run adds trials.
    return {
        "version": version,
        "id": run.id,
        "state": str(run.state),
        "is_paused": run.is_paused,
        "is_search": run.is_search,
        "counts": run.counts(),
        "metric": run.metric or "value",
        "params": list(dict.fromkeys(name for trial in trials for name in trial.params)),
        "metrics": [name for name in _metric_names(trials) if name != (run.metric or "value")],
        "sections": sections(run),
        "figures": list(FIGURES),
    }


def _metric_names(trials: Sequence[Trial]) -> list[str]:
    return list(dict.fromkeys(name for trial in trials for name in trial.metrics))


def trials(
    run: Run, *, offset: int, sort: str, descending: bool, state: str, text: str
) -> dict[str, Any]:
    """Return some rows of the table of trials.

    Args:
        run: the run.
        offset: number of rows to leave out at the beginning.
        sort: `number`, `state`, `value`, `seconds`, `attempts`, or the name of a parameter or a
            metric after `param:` or `metric:`.
        descending: largest first.
        state: only trials in this state; empty for all.
        text: only trials with this text in a parameter or the error; empty for all.
    """
    chosen = [t for t in list(run.trials) if not state or t.state == state]
    if text:
        chosen = [t for t in chosen if text.lower() in _searched(t)]
    key = _key(sort)
    with_value = [t for t in chosen if key(t) is not None]
    ordered = sorted(with_value, key=lambda t: _comparable(key(t)), reverse=descending)
    ordered += [t for t in chosen if key(t) is None]  # Last in both directions.
    best = {trial.number for trial in run.top(1)}
    rows = [_row(trial, trial.number in best) for trial in ordered[offset : offset + MAX_ROWS]]
    return {"total": len(ordered), "offset": offset, "rows": rows}


def _searched(trial: Trial) -> str:
    params = " ".join(f"{name}={value}" for name, value in trial.params.items())
    return f"{params} {trial.summary}".lower()


def _key(sort: str) -> Callable[[Trial], Any]:
    kind, _, name = sort.partition(":")
    if kind == "param":
        return lambda trial: trial.params.get(name)
    if kind == "metric":
        return lambda trial: trial.metrics.get(name)
    fields: dict[str, Callable[[Trial], Any]] = {
        "state": lambda trial: str(trial.state),
        "value": lambda trial: trial.last_value,
        "seconds": lambda trial: trial.duration_s,
        "attempts": lambda trial: trial.attempts,
    }
    return fields.get(kind, lambda trial: trial.number)


def _comparable(value: Any) -> tuple[int, Any]:
    """Return a key by which values of any kinds can be sorted: numbers before texts."""
    if isinstance(value, int | float):
        return (0, value) if math.isfinite(value) else (1, str(value))
    return 1, str(value)


def _row(trial: Trial, is_best: bool) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": str(trial.state),
        "is_best": is_best,
        "value": _finite(trial.last_value),
        "metrics": {name: _finite(value) for name, value in trial.metrics.items()},
        "params": {name: _finite(value) for name, value in trial.params.items()},
        "seconds": round(trial.duration_s, 1),
        "attempts": trial.attempts,
        "error": trial.summary or trial.note or "",
    }


def _finite(value: Any) -> Any:
    """Return a value for JSON: numbers, and anything else as text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (is_number and math.isfinite(value)):
        return value
    return str(value)


def figure(live: LiveRun, name: str) -> str | None:
    """Return a figure as plotly's JSON; None if there is none, or the run lacks the data."""
    if name not in FIGURES:
        return None
    figures = live.figures  # Another version has another dict.
    if name not in figures:
        made = FIGURES[name][0](live.run)
        figures[name] = None if made is None else str(made.to_json())
    return figures[name]


def log(trial: Trial, name: str, offset: int) -> dict[str, Any]:
    """Return the names of the logs of a trial, and a part of one.

    Args:
        trial: the trial.
        name: the name of the file; another name than that of a log takes the first log.
        offset: the number of bytes that are known; a negative number asks for the end.
    """
    names = sorted(
        name
        for name in storage.list_names(trial.path)
        if name.startswith("log") and name.endswith(".txt")
    )
    if not names:
        return {"names": [], "name": "", "text": "", "offset": 0, "skipped": 0}
    name = name if name in names else names[0]
    url = storage.join(trial.path, name)
    size = storage.size(url)
    begin = max(0, size - MAX_LOG_BYTES) if offset < 0 or offset > size else offset
    data = storage.read(url, begin, MAX_LOG_BYTES)
    return {
        "names": names,
        "name": name,
        "text": data.decode(errors="replace"),
        "offset": begin + len(data),
        "skipped": begin if offset < 0 else 0,
    }
