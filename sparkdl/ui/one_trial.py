"""Runs on the driver. One trial on the page: its facts, its curves and its logs."""

import codecs
import dataclasses
import re
from typing import Any

from werkzeug.exceptions import NotFound

from sparkdl.files import storage
from sparkdl.files.layout import is_log
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures import FIGURES
from sparkdl.ui.live_runs import Snapshot
from sparkdl.ui.plain import plain_value
from sparkdl.ui.trial_table import duration_of

# The most that one answer has of a log.
MAX_LOG_BYTES = 1 << 16
# A reader who is so far behind the end of a log goes on at its end.
MAX_BEHIND_BYTES = 1 << 20


def trial_of(snapshot: Snapshot, number: int) -> Trial:
    """Return a trial of a run.

    Raises:
        NotFound: if the run has no such trial.
    """
    trials = snapshot.run.trials
    if number >= len(trials):
        raise NotFound(f"run {snapshot.run.id} has no trial {number}")
    return trials[number]


def details(snapshot: Snapshot, number: int) -> dict[str, Any]:
    """Return all facts of a trial, with the whole traceback.

    Raises:
        NotFound: if the run has no such trial.
    """
    trial = trial_of(snapshot, number)
    usage = {name: value for name, value in vars(trial.usage).items() if value}
    return {
        "version": snapshot.version,
        "number": number,
        "state": str(trial.state),
        "is_best": number in snapshot.best,
        "metric": snapshot.run.metric or "value",
        "value": plain_value(trial.last_value),
        "params": {name: plain_value(value) for name, value in trial.params.items()},
        "metrics": {name: plain_value(value) for name, value in trial.metrics.items()},
        "outputs": {name: plain_value(value) for name, value in trial.outputs.items()},
        "seed": trial.seed,
        "attempts": trial.attempts,
        "duration": round(duration_of(trial), 1),
        "started": trial.spans[0][0] if trial.spans else None,
        "usage": usage,
        "failure": trial.failure,
        "error": trial.error,
        "note": trial.note,
        "path": trial.path,
    }


def curves(snapshot: Snapshot, number: int) -> str | None:
    """Return a figure of all metrics that a trial has reported, as plotly's JSON, or None.

    Raises:
        NotFound: if the run has no such trial.
    """
    trial = trial_of(snapshot, number)
    run = dataclasses.replace(snapshot.run, trials=[trial], objectives={})
    figure = FIGURES["curves"][0](run)
    return None if figure is None else str(figure.to_json())


def log(trial: Trial, name: str, offset: int) -> dict[str, Any]:
    """Return the names of the logs of a trial, and a part of one.

    Args:
        trial: the trial.
        name: the name of the file; another name than that of a log takes the first log.
        offset: the number of bytes that are known; a negative number asks for the end.

    Returns:
        The names, the name of the log, the text, the number of bytes that are known then, the
        number of bytes that were left out before the text, and True in `is_new` if the text does
        not continue what is known.
    """
    names = _logs_of(trial)
    if not names:
        return {"names": [], "name": "", "text": "", "offset": -1, "skipped": 0, "is_new": True}
    name = name if name in names else names[0]
    url = storage.join(trial.path, name)
    size = storage.size(url)
    is_new = offset < 0 or offset > size or size - offset > MAX_BEHIND_BYTES
    begin = max(0, size - MAX_LOG_BYTES) if is_new else offset
    data = storage.read(url, begin, MAX_LOG_BYTES)
    if is_new and begin:  # Begin with a whole line.
        skipped = data.find(b"\n") + 1
        begin += skipped
        data = data[skipped:]
    # The last character may be written in part.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data)
    pending, _ = decoder.getstate()
    end = begin + len(data) - len(pending)
    return {
        "names": names,
        "name": name,
        "text": text,
        "offset": end,
        "skipped": begin if is_new else 0,
        "is_new": is_new,
    }


def _logs_of(trial: Trial) -> list[str]:
    """Return the names of the logs, in the order of the ranks."""
    names = storage.list_names(trial.path)
    logs = [name for name in names if is_log(name)]
    return sorted(logs, key=lambda name: [int(p) if p.isdigit() else -1 for p in _parts(name)])


def _parts(name: str) -> list[str]:
    return re.findall(r"\d+|\D+", name)
