"""Runs anywhere. Commit checkpoints, and remove the checkpoints that are not retained."""

import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl.checkpoints.reader import (
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
from sparkdl.files import attempts, jsonl, storage
from sparkdl.files.layout import CHECKPOINTS
from sparkdl.training.metric_names import direction_of_name

# In the names of directories that wait to be copied.
MOVED = "-moved-"
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
    draft = Draft.begin(trial, attempt, files_of(source, trial))
    try:
        draft.copy(source, draft.files)
        return draft.seal(step, metrics)
    finally:
        draft.discard()


@dataclass(frozen=True)
class Draft:
    """A checkpoint that is being written. It counts from the moment it is sealed.

    Attributes:
        trial: the folder of the trial.
        attempt: the number of the attempt that writes it.
        number: its number, unless another process takes it meanwhile.
        url: the directory in which it is written. On a file system it has a hidden name at first;
            object stores cannot rename, so that it is the final place there.
        files: the paths of its files, relative to `url`.
    """

    trial: str
    attempt: int
    number: int
    url: str
    files: Sequence[str]

    @classmethod
    def begin(cls, trial: str, attempt: int, files: Sequence[str]) -> "Draft":
        """Remove what killed processes have left, and choose a place.

        Raises:
            SupersededError: if a later attempt at the trial has started.
        """
        attempts.check(trial, attempt)
        last = sweep(trial, attempt)
        number = last + 1
        if storage.is_local(trial):
            # A late process of an earlier attempt removes folders of its own attempt only.
            url = storage.join(trial, CHECKPOINTS, f".{attempt}-{uuid.uuid4().hex}")
        else:
            newest = read_marker(place(trial, last))
            if newest and newest["attempt"] < attempt:
                number += 1  # A late process of that attempt may still be copying a file.
            url = place(trial, number)
        return cls(trial, attempt, number, url, files)

    def copy(self, source: Path, names: Sequence[str]) -> None:
        """Copy files of a directory, while no later attempt at the trial has started."""
        fence = attempts.Fence(self.trial, self.attempt, FENCE_S)
        for name in names:
            fence.check()
            storage.put(source, name, self.url)

    def seal(self, step: int, metrics: Mapping[str, float]) -> Checkpoint:
        """Make the checkpoint count, once all files are there.

        Raises:
            FileNotFoundError: if a file is missing.
            SupersededError: if a later attempt at the trial has started.
        """
        if missing := set(self.files) - _files_at(self.url):
            raise FileNotFoundError(
                f"{storage.join(self.url, min(missing))} was removed while the checkpoint was "
                "being written; the checkpoint is not committed"
            )
        marker: dict[str, Any] = {
            "step": step,
            "metrics": dict(metrics),
            "time": time.time(),
            "files": list(self.files),
            "attempt": self.attempt,
        }
        attempts.check(self.trial, self.attempt)
        storage.write(storage.join(self.url, MARKER), jsonl.to_json(marker))
        number = self._show() if storage.is_local(self.trial) else self.number
        return Checkpoint(url=place(self.trial, number), number=number, **marker)

    def _show(self) -> int:
        """Give a checkpoint on a file system its name, and return its number."""
        number, folder = self.number, storage.local_path(self.url)
        storage.fsync([folder, *folder.rglob("*")])
        attempts.check(self.trial, self.attempt)
        while True:
            try:
                storage.rename(self.url, place(self.trial, number))
                break
            except OSError:
                if not storage.exists(place(self.trial, number)):
                    raise
                number += 1  # A late process of an earlier attempt took the number meanwhile.
        storage.fsync([folder.parent])
        return number

    def discard(self) -> None:
        """Remove what was not sealed; without a hidden name, the next commit removes it."""
        if storage.is_local(self.trial):
            storage.remove(self.url)


def _files_at(url: str) -> set[str]:
    """Return the files below a folder, relative to it."""
    if storage.is_local(url):
        folder = storage.local_path(url)
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    filesystem, folder_path = storage.filesystem(url)
    return {path[len(folder_path) :].lstrip("/") for path in filesystem.find(folder_path)}


def files_of(source: Path, trial: str) -> list[str]:
    """Return the files to commit, relative to their directory."""
    argument = f"checkpoint={str(source)!r}"
    remedy = "Save the model into a directory of its own, and report that directory."
    if not source.is_dir():
        problem = "is a file" if source.exists() else "does not exist"
        raise NotADirectoryError(f"{argument} {problem}; expected a directory. {remedy}")
    folder = storage.local_path(trial).resolve() / CHECKPOINTS
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


def sweep(trial: str, attempt: int, has_ended: bool = False) -> int:
    """Remove incomplete checkpoints of killed processes, and return the last number in use.

    Args:
        trial: the folder of the trial.
        attempt: the number of this attempt; what a later one is writing stays.
        has_ended: the process of this attempt has ended, so that it copies no directory any more.
    """
    folder = storage.join(trial, CHECKPOINTS)
    for name in storage.list_names(folder):
        limit = attempt - 1 if MOVED in name and not has_ended else attempt
        if name.startswith(".") and _attempt_in(name) <= limit:
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
