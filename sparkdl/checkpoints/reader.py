"""Runs anywhere. List, fetch and hold the checkpoints of a trial."""

import hashlib
import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkdl.files import jsonl, storage
from sparkdl.files.layout import CHECKPOINTS
from sparkdl.files.polling import retry

MARKER = "checkpoint.json"
HELD = ".held-"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A committed checkpoint.

    Attributes:
        url: the directory of the checkpoint.
        number: the number of the checkpoint in its trial, from 1; a newer one has a larger number.
        step: the step with which the checkpoint was reported.
        metrics: the last reported value of each metric at that time.
        time: the time of the commit, in seconds since 1970.
        files: the paths of the files, relative to `url`.
        attempt: the number of the attempt at the trial that committed the checkpoint.
    """

    url: str
    number: int
    step: int
    metrics: dict[str, float]
    time: float = 0.0
    files: list[str] = field(default_factory=list, repr=False)
    attempt: int = 0


def committed(trial: str) -> list[Checkpoint]:
    """Return the checkpoints of a trial, oldest first."""
    loaded = (_load(trial, number) for number in numbers(trial))
    return [checkpoint for checkpoint in loaded if checkpoint]


def newest(trial: str) -> Checkpoint | None:
    """Return the newest checkpoint of a trial; None if there is none."""
    loaded = (_load(trial, number) for number in reversed(numbers(trial)))
    return next((checkpoint for checkpoint in loaded if checkpoint), None)


def step_of(path: str) -> int:
    """Return the step with which a checkpoint was reported; -1 if `path` is no checkpoint."""
    marker = read_marker(path)
    return int(marker["step"]) if marker else -1


def numbers(trial: str) -> list[int]:
    """Return the numbers that are in use, ascending, also those of folders without a marker."""
    names = storage.list_names(storage.join(trial, CHECKPOINTS))
    return sorted(int(name) for name in names if re.fullmatch(r"\d{6,}", name))


def place(trial: str, number: int) -> str:
    """Return the directory of a checkpoint."""
    return storage.join(trial, CHECKPOINTS, f"{number:06}")


def read_marker(url: str) -> dict[str, Any] | None:
    """Return the content of a checkpoint's marker; None if it is missing or incomplete."""
    try:
        content = jsonl.from_json(storage.read(storage.join(url, MARKER)))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    # Markers of earlier versions have no number of an attempt.
    marker = {"attempt": 0, **content} if isinstance(content, dict) else {}
    fields = {"step", "metrics", "time", "files", "attempt"}
    return marker if marker.keys() == fields else None


def _load(trial: str, number: int) -> Checkpoint | None:
    url = place(trial, number)
    marker = read_marker(url)
    return Checkpoint(url=url, number=number, **marker) if marker else None


def fetch(trial: str, number: int, folder: str) -> str:
    """Return the local path of a checkpoint, and download it unless it is local already.

    The download is complete, or leaves nothing.

    Args:
        trial: the folder of any trial.
        number: the number of the checkpoint.
        folder: the local folder of a trial, below which the checkpoint is downloaded.

    Raises:
        FileNotFoundError: if there is no such checkpoint, or if it is removed meanwhile.
        OSError: if the store fails for minutes.
    """
    return retry(lambda: _fetch(trial, number, folder), "read a checkpoint")


def _fetch(trial: str, number: int, folder: str) -> str:
    target = local_place(trial, number, folder)
    if not storage.is_local(trial) and target.is_dir():
        return str(target)
    checkpoint = _load(trial, number)
    if checkpoint is None:
        raise FileNotFoundError(_missing(place(trial, number)))
    if not storage.is_local(trial):
        _download(checkpoint, target)
    return str(target)


def local_place(trial: str, number: int, folder: str) -> Path:
    """Return the path of a local checkpoint, or the path below `folder` of its download."""
    if storage.is_local(trial):
        return storage.local_path(place(trial, number)).absolute()
    # Checkpoints of several trials may have the same number.
    digest = hashlib.sha256(trial.encode()).hexdigest()
    return Path(folder, CHECKPOINTS, f"{number:06}-{digest[:12]}")


def _download(checkpoint: Checkpoint, target: Path) -> None:
    aside = target.with_name(f".{uuid.uuid4().hex}")
    try:
        storage.download(checkpoint.url, aside)
        for name in (*checkpoint.files, MARKER):
            if not (aside / name).is_file():
                raise FileNotFoundError(_missing(storage.join(checkpoint.url, name)))
        aside.rename(target)
    finally:
        storage.remove(str(aside))


def hold(url: str, by: str) -> None:
    """Keep a checkpoint from being removed until it is released.

    Args:
        url: the directory of the checkpoint.
        by: the name of the holder, such as a run id.

    Raises:
        FileNotFoundError: if the checkpoint does not exist any more.
    """
    if read_marker(url):
        storage.write(_hold_file(url, by), "")
        # A process that removes the checkpoint removes the marker first, and then looks for holds.
        if read_marker(url):
            return
        release(url, by)
    raise FileNotFoundError(_missing(url))


def release(url: str, by: str) -> None:
    """End a `hold`; without a hold, do nothing."""
    storage.remove(_hold_file(url, by))


def is_held(url: str) -> bool:
    """Return True if the checkpoint has a holder."""
    return any(name.startswith(HELD) for name in storage.list_names(url))


def _hold_file(url: str, by: str) -> str:
    return storage.join(url, HELD + quote(by, safe=""))


def _missing(url: str) -> str:
    return (
        f"no checkpoint at {url}: it was never committed, or is no longer kept. Raise "
        "keep_checkpoints=, or hold a checkpoint of another run before you use it."
    )
