"""Runs anywhere. Checkpoints are committed, and those that no rule keeps are removed."""

import json
import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl import storage
from sparkdl.checkpoints.reader import (
    FOLDER,
    HELD,
    MARKER,
    Checkpoint,
    committed,
    is_held,
    local_place,
    numbers,
    place,
    read_marker,
)

__all__ = ["commit", "kept", "prune"]


def commit(
    source: str | os.PathLike[str], trial: str, step: int, metrics: Mapping[str, float]
) -> Checkpoint:
    """Copy a directory as the next checkpoint. When this returns, a loss of power keeps it.

    Files are copied, and what links lead to; empty folders are not. What killed processes have
    left beside it is removed.

    Args:
        source: the directory. It stays as it is, and may be written to afterwards.
        trial: the trial's folder.
        step, metrics: what the marker says of it.

    Raises:
        NotADirectoryError: `source` is no directory.
        ValueError: it has no file in it, has one of the marker's name, or holds `trial`.

    Example:
        >>> from sparkdl.checkpoints import newest
        >>> Path("model").mkdir()
        >>> _ = Path("model", "weights").write_text("0.5")
        >>> commit("model", "trial", step=4, metrics={"loss": 0.25}).url
        'trial/checkpoints/000001'
        >>> newest("trial").step
        4
    """
    source = Path(source)
    files = _files(source, trial)
    number = _sweep(trial) + 1
    url = place(trial, number)
    said: dict[str, Any] = {"step": step, "metrics": dict(metrics)}
    said |= {"time": time.time(), "files": files}
    if storage.is_local(trial):
        aside = storage.join(trial, FOLDER, f".{uuid.uuid4().hex}")
        try:
            _write(source, said, aside)
            storage.settle([storage.local_path(aside), *storage.local_path(aside).rglob("*")])
            storage.rename(aside, url)
            storage.settle([storage.local_path(url).parent])
        finally:
            storage.remove(aside)
    else:
        _write(source, said, url)
    return Checkpoint(url, number, **said)


def _write(source: Path, said: dict[str, Any], url: str) -> None:
    for name in said["files"]:
        storage.put(source, name, url)
    storage.write(storage.join(url, MARKER), json.dumps(said))


def _files(source: Path, trial: str) -> list[str]:
    """The files to commit, relative to their directory."""
    what, own = f"checkpoint={str(source)!r}", "Save into a directory of its own and report that."
    if not source.is_dir():
        problem = "is a file" if source.exists() else "does not exist"
        raise NotADirectoryError(f"{what} {problem}; expected a directory. {own}")
    folder = storage.local_path(trial).resolve() / FOLDER
    if storage.is_local(trial) and folder.is_relative_to(source.resolve()):
        raise ValueError(f"{what} holds {folder}: each checkpoint would hold all before it. {own}")
    walk = os.walk(source, followlinks=True)
    files = {
        Path(at, name).relative_to(source).as_posix() for at, _, names in walk for name in names
    }
    if read_marker(str(source)):  # A checkpoint of ours, committed again.
        files -= {MARKER, *(name for name in files if name.startswith(HELD))}
    if MARKER in files:
        raise ValueError(
            f"{what} has a file {MARKER}; sparkdl adds its own of that name to each checkpoint. "
            "Give yours another name."
        )
    if not files:
        raise ValueError(f"{what} has no file in it. Save the model before it is reported.")
    return sorted(files)


def _sweep(trial: str) -> int:
    """Remove what killed processes have left; return the last number that was taken."""
    folder = storage.join(trial, FOLDER)
    for name in storage.names(folder):
        if name.startswith("."):
            storage.remove(storage.join(folder, name))
    taken = numbers(trial)
    for number in reversed(taken):
        if read_marker(place(trial, number)):
            break
        storage.remove(place(trial, number))
    return taken[-1] if taken else 0


def kept(
    found: Sequence[Checkpoint],
    keep: str | int,
    metric: str | None = None,
    direction: str = "max",
) -> set[int]:
    """The numbers of the checkpoints that a rule keeps (pure).

    Args:
        found: all there are, oldest first.
        keep: `best+last`, `last`, `all`, or how many of the last.
        metric: the number that makes the best; None takes the only one there is, if it is one.
        direction: `max` or `min`.

    Example:
        >>> losses = [2.0, 1.0, 4.0]
        >>> found = [Checkpoint("", n, n, {"loss": x}) for n, x in enumerate(losses, start=1)]
        >>> sorted(kept(found, "best+last", "loss", "min"))
        [2, 3]
    """
    if keep == "all":
        return {checkpoint.number for checkpoint in found}
    last = found[-keep:] if isinstance(keep, int) else found[-1:]
    best = _best(found, metric, direction) if keep == "best+last" else None
    return {checkpoint.number for checkpoint in (*last, *([best] if best else []))}


def _best(found: Sequence[Checkpoint], metric: str | None, direction: str) -> Checkpoint | None:
    """The earliest of the best."""
    names = {name for checkpoint in found for name in checkpoint.metrics}
    if metric is None and len(names) != 1:
        return None
    # A plain number, called `value`, stands for the metric.
    name, sign = metric or names.pop(), 1 if direction == "max" else -1
    values = [sign * c.metrics.get(name, c.metrics.get("value", math.nan)) for c in found]
    finite = [(value, c) for value, c in zip(values, found, strict=True) if math.isfinite(value)]
    return max(finite, key=lambda pair: pair[0])[1] if finite else None


def prune(
    trial: str,
    keep: str | int,
    metric: str | None = None,
    direction: str = "max",
    spare: str | None = None,
) -> None:
    """Remove a trial's checkpoints that are not kept, unless somebody holds them.

    Args:
        trial: the trial's folder.
        keep, metric, direction: see `kept`.
        spare: the local path of one that stays too.
    """
    if keep == "all":
        return
    stay = kept(committed(trial), keep, metric, direction)
    for number in numbers(trial):
        if number not in stay and not _is_at(trial, number, spare):
            _remove(place(trial, number))


def _is_at(trial: str, number: int, path: str | None) -> bool:
    if path is None:
        return False
    ours = local_place(trial, number, "")
    if storage.is_local(trial):
        return ours.resolve() == Path(path).resolve()
    return ours.name == Path(path).name


def _remove(url: str) -> None:
    said = read_marker(url)
    if said and is_held(url):
        return
    storage.remove(storage.join(url, MARKER))
    if said and is_held(url):  # Since a moment ago: who holds it saw the marker.
        storage.write(storage.join(url, MARKER), json.dumps(said))
    else:
        storage.remove(url)
