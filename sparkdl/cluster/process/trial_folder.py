"""Runs in a Spark task. The local folder of a training process, and its copy in a remote store."""

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from sparkdl.files import attempts, resources, storage
from sparkdl.files.jsonl import read_lines
from sparkdl.files.layout import ASKS, CHECKPOINTS, ORDERS, RANKS, TrialPaths
from sparkdl.files.polling import Outages, poll_s, retry, shared_s
from sparkdl.host.local_disk import local_disk

# Seconds between two copies, and between two looks for orders, where few trials run at once.
MIRROR_S = 5.0
ASKED_S = 1.0
# Seconds between two looks for a later attempt, on a remote store.
REMOTE_FENCE_S = 10.0

# A file of which a copy exists is copied again when it grew by a tenth, or else after the time that
# copying takes at this rate: what is copied is in proportion to what is written.
GROWTH = 1.1
BYTES_PER_S = 256 << 10

# How long the last files of a trial are written again. A store that fails for longer loses them,
# and not the outcome.
WRITE_S = 120.0

# Checkpoints are published as a whole when they are committed; ranks write their messages to
# the store directly; orders come from the store.
_NOT_MIRRORED = (CHECKPOINTS, RANKS, resources.FOLDER, ORDERS)


def last_reported(metrics: str) -> dict[str, float]:
    """Return the last value of each metric in a metrics file; empty if there is no file.

    Lines that are no reports, as a disk that was full leaves them, are skipped.
    """
    last: dict[str, float] = {}
    for line in read_lines(metrics):
        values = line.get("metrics")
        last |= values if isinstance(values, dict) else {}
    return last


@dataclass(frozen=True)
class _Copy:
    """The copy of a file: size and modification time of the original, and the time of copying."""

    size: int
    modified_ns: int
    copied_s: float

    def is_due(self, size: int, modified_ns: int, last: bool) -> bool:
        """Return True if the original is to be copied again; `last` does not wait for growth."""
        if (size, modified_ns) == (self.size, self.modified_ns):
            return False
        has_grown = size >= self.size * GROWTH
        return last or has_grown or time.monotonic() - self.copied_s >= size / BYTES_PER_S


class Mirror:
    """Copy the changes of a local folder to a URL.

    TensorFlow, and a log file that grows, need a local disk; the run directory may be on an
    object store. A training process then writes into a local folder, and its task calls `sync`.

    Args:
        folder: the local folder.
        url: the target of the copy.
        skip: names in `folder` that are not copied, with all that is below them.
        is_superseded: called before anything is copied; returns True if a later attempt at the
            trial writes to `url` now, so that this one must not.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        skip: Collection[str] = (),
        is_superseded: Callable[[], bool] = lambda: False,
    ) -> None:
        self.folder = folder
        self.url = url
        self._skip = skip
        self._is_superseded = is_superseded
        self._copies: dict[Path, _Copy] = {}

    def sync(self, last: bool = False) -> None:
        """Upload the files that have changed since the last call; large ones less often.

        Args:
            last: upload every file that has changed, however little.
        """
        for path in sorted(self.folder.rglob("*")):
            if path.relative_to(self.folder).parts[0] in self._skip:
                continue
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # A program may remove its files at any time.
            size, modified_ns = status.st_size, status.st_mtime_ns
            copy = self._copies.get(path)
            if not path.is_file() or (copy and not copy.is_due(size, modified_ns, last)):
                continue
            if self._is_superseded():
                return
            storage.put(self.folder, path.relative_to(self.folder).as_posix(), self.url)
            self._copies[path] = _Copy(size, modified_ns, time.monotonic())

    def close(self) -> None:
        """Sync a last time, with retries, and remove the local folder.

        Raises:
            OSError: if files could not be copied; then the local folder stays.
        """
        activity = "copy the files of a trial to the run directory"
        retry(lambda: self.sync(last=True), activity, WRITE_S)
        shutil.rmtree(self.folder, ignore_errors=True)


class local_folder:
    """The folder that a training process writes into: that of the trial, or one mirrored to it.

    Args:
        trial: the files of the trial.
        attempt: the number of this attempt.
        size: the number of processes of the trial. The ranks of a gang get no orders.
        at_once: the number of trials that run at once, and share the requests to a store.

    Attributes:
        note: after the end, a sentence about files that could not be copied; None if all were.
    """

    def __init__(self, trial: TrialPaths, attempt: int, size: int = 1, at_once: int = 1) -> None:
        self._trial = trial.folder
        sharing = size * at_once
        self._mirror_s = shared_s(MIRROR_S, sharing)
        fence_s = poll_s(trial.folder, remote_s=shared_s(REMOTE_FENCE_S, sharing))
        self._fence = attempts.Fence(trial.folder, attempt, fence_s)
        self._mirror: Mirror | None = None
        self._orders_size = 0
        self._outages = Outages("copy the files of a trial to the run directory")
        self._order_outages = Outages("read the orders for a trial")
        self.note: str | None = None
        if storage.is_local(trial.folder):
            self.folder = storage.local_path(trial.folder)
            storage.make_directory(str(self.folder))
            return
        self.folder = Path(tempfile.mkdtemp(prefix="sparkdl-", dir=local_disk()))
        self._mirror = Mirror(self.folder, trial.folder, _NOT_MIRRORED, self._fence.look)
        self._stop = threading.Event()
        # A large file must not delay orders.
        loops = [self._copy_repeatedly, *([self._read_orders_repeatedly] if size == 1 else [])]
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in loops]

    def watch(self) -> str | None:
        """Return the reason to end a training process that was superseded; None otherwise."""
        # On a remote store the threads look, so that the task never waits for the store.
        superseded = self._fence.is_closed if self._mirror else self._fence.look()
        return "a later attempt at the trial has started elsewhere" if superseded else None

    def _copy_repeatedly(self) -> None:
        while self._mirror and not self._stop.wait(self._interval_s()):
            with self._outages.tolerated():
                self._mirror.sync()

    def _read_orders_repeatedly(self) -> None:
        url = storage.join(self._trial, ORDERS)
        while not self._stop.wait(self._interval_s()):
            with self._order_outages.tolerated():
                self._fence.look()
                for new in storage.read_new({url: self._orders_size}).values():
                    self._orders_size += len(new)
                    storage.append(str(self.folder / ORDERS), new)

    def _interval_s(self) -> float:
        return ASKED_S if (self.folder / ASKS).exists() else self._mirror_s

    def __enter__(self) -> Path:
        if self._mirror:
            for thread in self._threads:
                thread.start()
        return self.folder

    def __exit__(self, *_: object) -> None:
        if not self._mirror:
            return
        self._stop.set()
        for thread in self._threads:
            thread.join()
        try:
            self._mirror.close()
        except OSError as exc:
            self.note = (
                f"files of the trial could not be copied to {self._trial} "
                f"({type(exc).__name__}: {exc}). They are in {self.folder} on host "
                f"{socket.gethostname()}, until Spark removes its local folders"
            )
