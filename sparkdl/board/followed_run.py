"""Runs on the driver. A run of any driver, read again when its journal has grown."""

import time

from sparkdl.files.layout import RunPaths
from sparkdl.runs.events import ReportsReceived
from sparkdl.runs.history import load
from sparkdl.runs.journal_tail import JournalTail
from sparkdl.runs.owner import OwnerWatch
from sparkdl.runs.run import Run

# A large run takes a while to read: no more than this share of the time is spent on it.
MAX_SHARE = 0.1


class FollowedRun:
    """A run that may go on elsewhere.

    Args:
        path: the run directory.

    Raises:
        RunNotFoundError: if there is no such run.
        RunDamagedError: if its files cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._tail = JournalTail(RunPaths(path).journal)
        self._owner = OwnerWatch(RunPaths(path))
        self._read()

    def _read(self, watch: OwnerWatch | None = None) -> None:
        begun_s = time.monotonic()
        self._run = load(self._path, watch)
        self._is_old = False
        self._read_s = time.monotonic()
        self._took_s = self._read_s - begun_s

    def now(self) -> Run:
        """Return the run as it is now, or as it was a moment ago.

        Raises:
            OSError: if the store cannot be read now.
        """
        events = self._tail.read()
        # What a trial reports changes neither its state nor its parameters.
        self._is_old |= any(not isinstance(event, ReportsReceived) for event in events)
        if self._is_old and time.monotonic() - self._read_s >= self._took_s / MAX_SHARE:
            # Whoever writes to the journal lives: no heartbeat is awaited.
            self._read(self._owner)
        return self._run
