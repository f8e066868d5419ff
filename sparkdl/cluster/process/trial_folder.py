"""Runs in a Spark task. The local folder of a training process, and its copy in a remote store."""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from sparkdl import storage
from sparkdl.jsonl import read_lines
from sparkdl.polling import Outages
from sparkdl.reporter import ASKS, ORDERS
from sparkdl.runs.layout import TrialPaths

__all__ = ["Mirror", "again", "last_reported", "local_folder"]

T = TypeVar("T")

MIRROR_S = 5.0
ASKED_S = 1.0

# Checkpoints are published as a whole when they are committed; ranks write their messages to
# the store directly; orders come from the store.
_NOT_MIRRORED = ("checkpoints", "ranks", ORDERS)


def last_reported(metrics: str) -> dict[str, float]:
    """Return the last value of each metric in a metrics file; empty if there is no file."""
    last: dict[str, float] = {}
    for line in read_lines(metrics):
        last |= line["metrics"]
    return last


class Mirror:
    """Copy the changes of a local folder to a URL.

    TensorFlow, and a log file that grows, need a local disk; the run directory may be on an
    object store. The training process writes into the local folder, and its task calls `sync`.

    Args:
        folder: the local folder.
        url: the target of the copy.
        skip: names in `folder` that are not copied, with all that is below them.
    """

    def __init__(self, folder: Path, url: str, skip: Collection[str] = ()) -> None:
        self.folder = folder
        self.url = url
        self._skip = skip
        self._seen: dict[Path, tuple[int, int]] = {}

    def sync(self) -> None:
        """Upload every file whose size or modification time has changed since the last call."""
        for path in sorted(self.folder.rglob("*")):
            if path.relative_to(self.folder).parts[0] in self._skip:
                continue
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # A program may remove its files at any time.
            mark = (status.st_size, status.st_mtime_ns)
            if path.is_file() and self._seen.get(path) != mark:
                storage.put(self.folder, path.relative_to(self.folder).as_posix(), self.url)
                self._seen[path] = mark

    def close(self) -> None:
        """Sync a last time, with retries, and remove the local folder."""
        try:
            again(self.sync)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def again(write: Callable[[], T]) -> T:
    """Write to a store, with two retries; return what `write` returns.

    Raises:
        OSError: if the last retry fails too.
    """
    for pause_s in (1.0, 5.0):
        try:
            return write()
        except OSError:
            time.sleep(pause_s)
    return write()


class local_folder:
    """The folder that a training process writes into: that of the trial, or one mirrored to it."""

    def __init__(self, trial: TrialPaths) -> None:
        self._mirror: Mirror | None = None
        self._orders_size = 0
        self._outages = Outages("copy the files of a trial to the run directory")
        if storage.is_local(trial.folder):
            self.folder = storage.local_path(trial.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            return
        self.folder = Path(tempfile.mkdtemp(prefix="sparkdl-"))
        self._mirror = Mirror(self.folder, trial.folder, _NOT_MIRRORED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sync_repeatedly, daemon=True)

    def _sync_repeatedly(self) -> None:
        mirror = self._mirror
        while mirror and not self._stop.wait(self._interval_s()):
            with self._outages.tolerated():
                mirror.sync()
                orders = storage.read_new({storage.join(mirror.url, ORDERS): self._orders_size})
                for new in orders.values():
                    self._orders_size += len(new)
                    storage.append(str(self.folder / ORDERS), new)

    def _interval_s(self) -> float:
        return ASKED_S if (self.folder / ASKS).exists() else MIRROR_S

    def __enter__(self) -> Path:
        if self._mirror:
            self._thread.start()
        return self.folder

    def __exit__(self, *_: object) -> None:
        if self._mirror:
            self._stop.set()
            self._thread.join()
            self._mirror.close()
