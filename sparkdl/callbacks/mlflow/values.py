"""Runs anywhere (pure). Runs and trials in the form in which MLflow takes them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sparkdl.files.jsonl import to_json
from sparkdl.runs import Run, Trial
from sparkdl.runs.annotations import Annotations
from sparkdl.secrets.masks import mask_text

T = TypeVar("T")

# The status of a run of MLflow, by the state of a run or a trial.
STATUS = {
    "WAITING": "SCHEDULED",
    "RUNNING": "RUNNING",
    "PAUSED": "SCHEDULED",
    "LOST": "FAILED",
    "COMPLETE": "FINISHED",
    "FAILED": "FAILED",
    "INVALID": "FAILED",
    "PRUNED": "KILLED",
    "CANCELLED": "KILLED",
}

# The tag that MLflow shows as the description, and that with the names of the tags of users.
NOTE, USER_TAGS = "mlflow.note.content", "sparkdl.tags"

# The states in which a trial has an error.
_WITH_ERROR = ("WAITING", "LOST", "FAILED", "INVALID", "CANCELLED")

# Limits of MLflow for names, and for values of parameters and tags.
MAX_NAME = 250
MAX_VALUE = 5000

_NOT_ALLOWED = re.compile(r"[^/\w.\- ]")


def names_of(names: Iterable[str]) -> dict[str, str]:
    """Return the name in MLflow of each parameter, metric or tag.

    MLflow takes letters, digits, `_`, `-`, `.`, `/` and spaces, and no names that are no paths.
    Names that become the same get a number.

    Example:
        >>> names_of(["loss", "top@5", "top%5", "../x"])
        {'loss': 'loss', 'top@5': 'top_5', 'top%5': 'top_5_2', '../x': '_/x'}
    """
    names_there: dict[str, str] = {}
    for name in names:
        parts = [part for part in _NOT_ALLOWED.sub("_", name).split("/") if part]
        path = "/".join("_" if part.strip(".") == "" else part for part in parts) or "_"
        allowed = path = path[:MAX_NAME]
        number = 1
        while allowed in names_there.values():
            number += 1
            allowed = f"{path[: MAX_NAME - 5]}_{number}"
        names_there[name] = allowed
    return names_there


def text_of(value: Any) -> str:
    """Return the value of a parameter or a tag as text of a length that MLflow takes."""
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in groups of at most `size`; one empty group if there are none.

    Example:
        >>> list(batches([1, 2, 3], 2)), list(batches([], 2))
        ([[1, 2], [3]], [[]])
    """
    for start in range(0, max(len(items), 1), size):
        yield items[start : start + size]


def masked_uri(uri: str) -> str:
    """Return the URI of a tracking server without its credentials.

    Example:
        >>> masked_uri("http://ann:pa55@mlflow:5000/?token=abc"), masked_uri("sqlite:///m.db")
        ('http://***@mlflow:5000/***', 'sqlite:///m.db')
    """
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "***"
    host = parts.netloc.rpartition("@")[2]
    if host != parts.netloc:
        uri = uri.replace(parts.netloc, f"***@{host}", 1)
    if parts.query or parts.fragment:
        uri = f"{re.split('[?#]', uri, maxsplit=1)[0]}***"
    return mask_text(uri)


# ---- tags


def parent_tags(run: Run, description: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags that the run has from its beginning.

    Args:
        run: the run.
        description: the content of `run.json`.
    """
    tags = {
        "mlflow.source.name": description.get("main") or description.get("function"),
        "mlflow.source.type": "JOB",
        "mlflow.source.git.commit": str(description.get("git_commit") or "").split(" ")[0],
        "mlflow.user": description.get("user"),
        "sparkdl.path": run.path,
        "sparkdl.kind": run.kind,
        "sparkdl.metric": run.metric,
        "sparkdl.direction": run.direction,
        "sparkdl.seed": description.get("seed"),
        "sparkdl.version": description.get("versions", {}).get("sparkdl"),
        "sparkdl.reproduces": run.reproduces,
        "sparkdl.space": description.get("space") and to_json(description["space"]),
    }
    return {name: text_of(value) for name, value in tags.items() if value not in (None, "")}


def summary_tags(
    run: Run, description: Mapping[str, Any], annotations: Annotations
) -> dict[str, str]:
    """Return the tags that follow the state of the run, and its tags and notes.

    Args:
        run: the run.
        description: the content of `run.json`.
        annotations: the tags and notes of users.
    """
    best = run.top(1) if len(run.objectives) < 2 else []
    notes = [description.get("description"), *(str(note) for note in annotations.notes)]
    tags = {
        "sparkdl.state": str(run.state),
        "sparkdl.reason": run.reason,
        "sparkdl.trials": run.counts_text(),
        "sparkdl.best_trial": best[0].number if best else None,
        NOTE: "\n\n".join(note for note in notes if note),
    }
    user_tags = names_of(
        tag for tag in annotations.tags if not tag.startswith(("mlflow.", "sparkdl."))
    )
    tags |= {USER_TAGS: ",".join(user_tags.values()), **dict.fromkeys(user_tags.values(), "true")}
    return {name: text_of(value) for name, value in tags.items() if value not in (None, "")}


def trial_tags(trial: Trial) -> dict[str, str]:
    """Return the tags that follow the state of a trial."""
    tags = {
        "sparkdl.state": str(trial.state),
        "sparkdl.seed": trial.seed,
        "sparkdl.configuration": trial.configuration,
        "sparkdl.attempts": trial.attempts,
        "sparkdl.failure": trial.failure,
        NOTE: trial.summary or trial.note,
    }
    return {name: text_of(value) for name, value in tags.items() if value not in (None, "")}


def obsolete_tags(before: Mapping[str, str], now: Mapping[str, str], is_final: bool) -> list[str]:
    """Return the names of the tags of this mirror that do not hold any more.

    Args:
        before: the tags that MLflow has of a run or a trial.
        now: the tags that follow its state.
        is_final: the run has ended, so that `now` has the tags of users.

    Example:
        >>> before = {"sparkdl.reason": "timeout", "sparkdl.tags": "a,b", "a": "true", "b": "true"}
        >>> obsolete_tags(before, {"sparkdl.tags": "b", "b": "true"}, True)
        ['sparkdl.reason', 'a']
    """
    names = ["sparkdl.reason", "sparkdl.best_trial", "sparkdl.failure"]
    # In other states the note may be one that a user has written in MLflow.
    if before.get("sparkdl.trial") and before.get("sparkdl.state") in _WITH_ERROR:
        names.append(NOTE)
    if is_final:
        names += [USER_TAGS, *before.get(USER_TAGS, "").split(",")]
    return [name for name in names if name in before and name not in now]


def started_ms(description: Mapping[str, Any]) -> int:
    """Return the time at which a run was created, in milliseconds since 1970.

    Example:
        >>> started_ms({"created": "1970-01-01T00:01:00+0000"})
        60000
    """
    created = datetime.strptime(description["created"], "%Y-%m-%dT%H:%M:%S%z")
    return int(created.timestamp() * 1000)
