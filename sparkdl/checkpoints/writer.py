"""Runs anywhere. Commit checkpoints, and remove the checkpoints that are not retained."""

import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl import attempts, jsonl, storage
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
from sparkdl.metric_names import direction_of_name

__all__ = ["best", "commit", "prune", "retained", "sweep"]

# Seconds between two looks for a later attempt while files are copied.
FENCE_S = 2.0


def commit(
    source: str | os.PathLike[str],
    trial: str,
    step: int,
    metrics: Mapping[str, float],
    attempt: int = 0,
) -> Checkpoint:
    """Copy a directory as the next checkpoint. After the return it survives a loss of power.

    Files and the targets of links are copied; empty folders are not. Incomplete checkpoints that
    killed processes of this attempt and of earlier ones have left are removed.

    Args:
        source: the directory. It is not changed, and may be written to after the return.
        trial: the folder of the trial.
        step: the step, for the marker.
        metrics: the values of metrics, for the marker.
        attempt: the number of the attempt at the trial that this process belongs to.

    Raises:
        NotADirectoryError: if `source` is no directory.
        ValueError: if `source` has no files, if a file has the name of the marker, or if `source`
            contains `trial`.
        SupersededError: if a later attempt at the trial has started, which commits now.
        OSError: if a file could not be copied.

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
    attempts.check(trial, attempt)
    marker: dict[str, Any] = {
        "step": step,
        "metrics": dict(metrics),
        "time": time.time(),
        "files": files,
        "attempt": attempt,
    }
    last = sweep(trial, attempt)
    if storage.is_local(trial):
        number = _commit_locally(source, trial, last + 1, marker)
    else:
        number = last + 1
        newest = read_marker(place(trial, last))
        if newest and newest["attempt"] < attempt:
            number += 1  # A late process of that attempt may still be copying a file.
        _write(source, marker, place(trial, number), trial)
    return Checkpoint(url=place(trial, number), number=number, **marker)


def _commit_locally(source: Path, trial: str, number: int, marker: Mapping[str, Any]) -> int:
    """Write a checkpoint under a hidden name, rename it, and return its number."""
    # A late process of an earlier attempt removes folders of its own attempt only.
    aside = storage.join(trial, FOLDER, f".{marker['attempt']}-{uuid.uuid4().hex}")
    try:
        _write(source, marker, aside, trial)
        storage.fsync([storage.local_path(aside), *storage.local_path(aside).rglob("*")])
        attempts.check(trial, marker["attempt"])
        while True:
            try:
                storage.rename(aside, place(trial, number))
                break
            except OSError:
                if not storage.exists(place(trial, number)):
                    raise
                number += 1  # A late process of an earlier attempt took the number meanwhile.
        storage.fsync([storage.local_path(trial) / FOLDER])
    finally:
        storage.remove(aside)
    return number


def _write(source: Path, marker: Mapping[str, Any], url: str, trial: str) -> None:
    fence = attempts.Fence(trial, marker["attempt"], FENCE_S)
    for name in marker["files"]:
        fence.check()
        storage.put(source, name, url)
    if missing := set(marker["files"]) - _files_at(url):
        raise FileNotFoundError(
            f"{storage.join(url, min(missing))} was removed while the checkpoint was being "
            "written; the checkpoint is not committed"
        )
    attempts.check(trial, marker["attempt"])
    storage.write(storage.join(url, MARKER), jsonl.to_json(marker))


def _files_at(url: str) -> set[str]:
    """Return the files below a folder, relative to it."""
    if storage.is_local(url):
        folder = storage.local_path(url)
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    filesystem, folder_path = storage.filesystem(url)
    return {path[len(folder_path) :].lstrip("/") for path in filesystem.find(folder_path)}


def _files(source: Path, trial: str) -> list[str]:
    """Return the files to commit, relative to their directory."""
    argument = f"checkpoint={str(source)!r}"
    remedy = "Save the model into a directory of its own, and report that directory."
    if not source.is_dir():
        problem = "is a file" if source.exists() else "does not exist"
        raise NotADirectoryError(f"{argument} {problem}; expected a directory. {remedy}")
    folder = storage.local_path(trial).resolve() / FOLDER
    if storage.is_local(trial) and folder.is_relative_to(source.resolve()):
        raise ValueError(
            f"{argument} contains {folder}: each checkpoint would contain all earlier checkpoints. "
            f"{remedy}"
        )
    walk = os.walk(source, followlinks=True)
    files = {
        Path(at, name).relative_to(source).as_posix() for at, _, names in walk for name in names
    }
    if read_marker(str(source)):  # The source is a checkpoint itself.
        files -= {MARKER, *(name for name in files if name.startswith(HELD))}
    if MARKER in files:
        raise ValueError(
            f"{argument} has a file {MARKER}, but sparkdl writes a file of that name into each "
            "checkpoint. Give your file another name."
        )
    if not files:
        raise ValueError(
            f"{argument} has no files. Save the model before you report its directory."
        )
    return sorted(files)


def sweep(trial: str, attempt: int) -> int:
    """Remove incomplete checkpoints of killed processes, and return the last number in use.

    Args:
        trial: the folder of the trial.
        attempt: the number of this attempt; what a later one is writing stays.
    """
    folder = storage.join(trial, FOLDER)
    for name in storage.list_names(folder):
        if name.startswith(".") and _attempt_in(name) <= attempt:
            storage.remove(storage.join(folder, name))
    taken = numbers(trial)
    for number in reversed(taken):
        if read_marker(place(trial, number)):
            break
        storage.remove(place(trial, number))
    return taken[-1] if taken else 0


def _attempt_in(name: str) -> int:
    """Return the number in the name of a folder that was being written, such as `.2-0f3a`."""
    number = name[1:].partition("-")[0]
    return int(number) if number.isdigit() else 0


def retained(
    checkpoints: Sequence[Checkpoint],
    keep: str | int,
    metric: str | None = None,
    direction: str = "max",
) -> set[int]:
    """Return the numbers of the checkpoints that a rule retains (pure).

    Args:
        checkpoints: all checkpoints of a trial, oldest first.
        keep: `best+last`, `last`, `all`, or the number of newest checkpoints.
        metric: the metric of the best checkpoint; None takes the only metric, if there is exactly
            one.
        direction: `max` or `min`.

    Example:
        >>> points = [
        ...     Checkpoint(url="", number=number, step=number, metrics={"loss": loss})
        ...     for number, loss in enumerate([2.0, 1.0, 4.0], start=1)
        ... ]
        >>> sorted(retained(points, "best+last", "loss", "min"))
        [2, 3]
    """
    if keep == "all":
        return {checkpoint.number for checkpoint in checkpoints}
    last = checkpoints[-keep:] if isinstance(keep, int) else checkpoints[-1:]
    first = best(checkpoints, metric, direction) if keep == "best+last" else None
    return {checkpoint.number for checkpoint in (*last, *([first] if first else []))}


def best(
    checkpoints: Sequence[Checkpoint], metric: str | None, direction: str
) -> Checkpoint | None:
    """Return the earliest of the best checkpoints; None if none has a value of the metric (pure).

    Args:
        checkpoints: the checkpoints of a trial, oldest first.
        metric: see `retained`.
        direction: see `retained`. Of a metric that was not named, the name decides if it tells the
            direction: a `loss` is minimized.
    """
    names = {name for checkpoint in checkpoints for name in checkpoint.metrics}
    if metric is None and len(names) != 1:
        return None
    name = metric or names.pop()
    if metric is None:
        direction = direction_of_name(name) or direction
    sign = 1 if direction == "max" else -1
    # A plain number is reported as `value` and counts as the metric.
    values = [sign * c.metrics.get(name, c.metrics.get("value", math.nan)) for c in checkpoints]
    pairs = zip(values, checkpoints, strict=True)
    finite = [(value, checkpoint) for value, checkpoint in pairs if math.isfinite(value)]
    return max(finite, key=lambda pair: pair[0])[1] if finite else None


def prune(
    trial: str,
    keep: str | int,
    metric: str | None = None,
    direction: str = "max",
    spare: str | None = None,
) -> None:
    """Remove the checkpoints of a trial that are neither retained nor held.

    Args:
        trial: the folder of the trial.
        keep: see `retained`.
        metric: see `retained`.
        direction: see `retained`.
        spare: the local path of a checkpoint that is not removed either.
    """
    if keep == "all":
        return
    to_keep = retained(committed(trial), keep, metric, direction)
    for number in numbers(trial):
        if number not in to_keep and not _is_at(trial, number, spare):
            _remove(place(trial, number))


def _is_at(trial: str, number: int, path: str | None) -> bool:
    if path is None:
        return False
    checkpoint = local_place(trial, number, "")
    if storage.is_local(trial):
        return checkpoint.resolve() == Path(path).resolve()
    return checkpoint.name == Path(path).name


def _remove(url: str) -> None:
    marker = read_marker(url)
    if marker and is_held(url):
        return
    storage.remove(storage.join(url, MARKER))
    # A hold that was written in the meantime may have seen the marker, so it is restored.
    if marker and is_held(url):
        storage.write(storage.join(url, MARKER), jsonl.to_json(marker))
    else:
        storage.remove(url)
