"""Runs in a Spark task.

The local folder that a training process writes into; what it says there.
"""

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from sparkdl import storage
from sparkdl.jsonl import read_lines
from sparkdl.reporter import ASKS, ORDERS
from sparkdl.runs.layout import TrialPaths

__all__ = ["Mirror", "again", "last_reported", "local_folder"]

MIRROR_S = 5.0
ASKED_S = 1.0

# Checkpoints are published as a whole by whoever commits them; ranks tell each other directly;
# orders go the other way.
_NOT_MIRRORED = ("checkpoints", "ranks", ORDERS)


def last_reported(metrics: str) -> dict[str, float]:
    """Return the last number of each name in a metrics file; empty if there is no such file."""
    last: dict[str, float] = {}
    for line in read_lines(metrics):
        last |= line["metrics"]
    return last


class Mirror:
    """Copies what changes in a local folder to a URL.

    TensorFlow, and a log file that grows, need a local disk; the run directory may be on an
    object store. The training process writes into the local folder, and its task calls `sync`.

    Args:
        folder: the local folder.
        url: where it is copied to.
        skip: names in `folder` that stay here, with all below them.
    """

    def __init__(self, folder: Path, url: str, skip: Collection[str] = ()) -> None:
        self.folder = folder
        self.url = url
        self._skip = skip
        self._seen: dict[Path, tuple[int, int]] = {}

    def sync(self) -> None:
        """Upload every file whose size or time of change differs from the last call."""
        for path in sorted(self.folder.rglob("*")):
            if path.relative_to(self.folder).parts[0] in self._skip:
                continue
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # It was there a moment ago; programs remove files of theirs.
            mark = (status.st_size, status.st_mtime_ns)
            if path.is_file() and self._seen.get(path) != mark:
                storage.put(self.folder, path.relative_to(self.folder).as_posix(), self.url)
                self._seen[path] = mark

    def close(self) -> None:
        """A last `sync`, tried again where the store fails for a moment; the local folder goes."""
        try:
            again(self.sync)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def again(write: Callable[[], object]) -> None:
    """Write to a store; tried again where that fails for a moment.

    Raises:
        OSError: it fails for longer.
    """
    for pause_s in (1.0, 5.0, None):
        try:
            write()
            return
        except OSError:
            if pause_s is None:
                raise
            time.sleep(pause_s)


class local_folder:
    """The folder that a training process writes into: the trial's own, or one mirrored to it."""

    def __init__(self, trial: TrialPaths) -> None:
        self._mirror: Mirror | None = None
        self._obeyed = 0
        if storage.is_local(trial.folder):
            self.folder = storage.local_path(trial.folder)
            return
        self.folder = Path(tempfile.mkdtemp(prefix="sparkdl-"))
        self._mirror = Mirror(self.folder, trial.folder, _NOT_MIRRORED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_in_step, daemon=True)

    def _keep_in_step(self) -> None:
        mirror = self._mirror
        while mirror and not self._stop.wait(self._pause_s()):
            with contextlib.suppress(OSError):  # The store fails for a moment: the next time.
                mirror.sync()
                orders = storage.read_new({storage.join(mirror.url, ORDERS): self._obeyed})
                for new in orders.values():
                    self._obeyed += len(new)
                    storage.append(str(self.folder / ORDERS), new)

    def _pause_s(self) -> float:
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
