"""Runs anywhere. The checkpoints that are there: listed, fetched, held."""

import hashlib
import json
import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkdl import storage

__all__ = [
    "FOLDER",
    "HELD",
    "MARKER",
    "Checkpoint",
    "committed",
    "fetch",
    "hold",
    "is_held",
    "local_place",
    "newest",
    "numbers",
    "place",
    "read_marker",
    "release",
    "step_of",
]

FOLDER = "checkpoints"
MARKER = "checkpoint.json"
HELD = ".held-"


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint.

    Attributes:
        url: its directory.
        number: its place among those of its trial, from 1; the larger, the newer.
        step: the step that it was reported with.
        metrics: the last of each number reported when it was committed.
        time: when that was, in seconds since 1970.
        files: the paths in it, relative to `url`.
    """

    url: str
    number: int
    step: int
    metrics: dict[str, float]
    time: float = 0.0
    files: list[str] = field(default_factory=list, repr=False)


def committed(trial: str) -> list[Checkpoint]:
    """The checkpoints of a trial, oldest first."""
    found = (_load(trial, number) for number in numbers(trial))
    return [checkpoint for checkpoint in found if checkpoint]


def newest(trial: str) -> Checkpoint | None:
    """The last checkpoint of a trial; None where there is none."""
    found = (_load(trial, number) for number in reversed(numbers(trial)))
    return next((checkpoint for checkpoint in found if checkpoint), None)


def step_of(path: str) -> int:
    """The step that a checkpoint was reported with; -1 if nothing is committed at `path`."""
    said = read_marker(path)
    return int(said["step"]) if said else -1


def numbers(trial: str) -> list[int]:
    """The numbers that are taken, ascending, with or without a marker."""
    names = storage.names(storage.join(trial, FOLDER))
    return sorted(int(name) for name in names if re.fullmatch(r"\d{6,}", name))


def place(trial: str, number: int) -> str:
    """The directory of a trial's checkpoint."""
    return storage.join(trial, FOLDER, f"{number:06}")


def read_marker(url: str) -> dict[str, Any] | None:
    """What a checkpoint's marker says; None where there is none, or half of one."""
    try:
        said = json.loads(storage.read(storage.join(url, MARKER)))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    fields = {"step", "metrics", "time", "files"}
    return said if isinstance(said, dict) and said.keys() == fields else None


def _load(trial: str, number: int) -> Checkpoint | None:
    url = place(trial, number)
    said = read_marker(url)
    return Checkpoint(url, number, **said) if said else None


def fetch(trial: str, number: int, folder: str) -> str:
    """The local path of a checkpoint, which is downloaded unless it is local already.

    Args:
        trial, number: which checkpoint, of any trial.
        folder: a trial's local folder, to download to: a complete copy, or none.

    Raises:
        FileNotFoundError: there is no such checkpoint, or it was removed meanwhile.
    """
    target = local_place(trial, number, folder)
    if not storage.is_local(trial) and target.is_dir():
        return str(target)
    checkpoint = _load(trial, number)
    if checkpoint is None:
        raise FileNotFoundError(_gone(place(trial, number)))
    if not storage.is_local(trial):
        _download(checkpoint, target)
    return str(target)


def local_place(trial: str, number: int, folder: str) -> Path:
    """Where a checkpoint is, or where below `folder` it is downloaded to."""
    if storage.is_local(trial):
        return storage.local_path(place(trial, number)).absolute()
    # Other trials have checkpoints of the same numbers.
    digest = hashlib.sha256(trial.encode()).hexdigest()
    return Path(folder, FOLDER, f"{number:06}-{digest[:12]}")


def _download(checkpoint: Checkpoint, target: Path) -> None:
    aside = target.with_name(f".{uuid.uuid4().hex}")
    try:
        storage.download(checkpoint.url, aside)
        for name in (*checkpoint.files, MARKER):
            if not (aside / name).is_file():
                raise FileNotFoundError(_gone(storage.join(checkpoint.url, name)))
        aside.rename(target)
    finally:
        storage.remove(str(aside))


def hold(url: str, by: str) -> None:
    """Keep a checkpoint from being removed until it is released.

    Args:
        url: the checkpoint's directory.
        by: who needs it, such as a run id.

    Raises:
        FileNotFoundError: there is no such checkpoint any more.
    """
    if read_marker(url):
        storage.write(_hold(url, by), "")
        if read_marker(url):  # Whoever removes it takes the marker, then looks for holds.
            return
        release(url, by)
    raise FileNotFoundError(_gone(url))


def release(url: str, by: str) -> None:
    """End a `hold`; nothing happens where there is none."""
    storage.remove(_hold(url, by))


def is_held(url: str) -> bool:
    """Whether anybody holds the checkpoint."""
    return any(name.startswith(HELD) for name in storage.names(url))


def _hold(url: str, by: str) -> str:
    return storage.join(url, HELD + quote(by, safe=""))


def _gone(url: str) -> str:
    return (
        f"there is no {url}: that checkpoint was never committed, or is no longer kept. Look at "
        "keep_checkpoints, and hold one of another run before you use it."
    )
