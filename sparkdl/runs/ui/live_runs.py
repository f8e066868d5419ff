"""Runs on the driver. The runs below a root, read again when their files change."""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from sparkdl import storage
from sparkdl.runs.history import history
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.run import Run
from sparkdl.runs.states import RunState

__all__ = ["LiveRun", "LiveRuns"]

# Seconds for which the list of runs, and a run, are not looked at again.
LIST_S = 2.0
LOOK_S = 1.0
# A large run takes a while to read: no more than this share of the time is spent on it.
MAX_SHARE = 0.1
# A driver that dies writes nothing: a run that goes on is read again after so many seconds.
REREAD_S = 30.0
# The runs that are kept in memory.
MAX_RUNS = 20


class LiveRun:
    """A run as it was last read.

    Args:
        path: the run directory.
        load: reads a run from its directory.

    Attributes:
        run: the run.
        version: a number that grows when the run was read again.
        figures: the figures of this version as JSON, by name; None for one without enough data.

    Raises:
        RunNotFoundError: if there is no such run.
        RunDamagedError: if its files cannot be read.
    """

    def __init__(self, path: str, load: Callable[[str], Run]) -> None:
        self._path = path
        self._load = load
        self._lock = threading.Lock()
        self.version = 0
        self._read()

    def _read(self) -> None:
        begun_s = time.monotonic()
        self._marks = _marks_of(self._path)
        self.run = self._load(self._path)
        self.figures: dict[str, str | None] = {}
        self.version += 1
        self._read_s = self._looked_s = time.monotonic()
        self._took_s = self._read_s - begun_s

    def refresh(self) -> None:
        """Read the run again if its journal has grown; at most one thread does so."""
        now = time.monotonic()
        is_fresh = now - self._looked_s < max(LOOK_S, self._took_s / MAX_SHARE)
        if is_fresh or not self._lock.acquire(blocking=False):
            return
        try:
            self._looked_s = now
            is_old = self.run.state == RunState.RUNNING and now - self._read_s > REREAD_S
            if is_old or _marks_of(self._path) != self._marks:
                self._read()
        finally:
            self._lock.release()


class LiveRuns:
    """The runs below a root.

    Args:
        root: the directory or URL that holds the runs.
        load: reads a run from its directory.
    """

    def __init__(self, root: str, load: Callable[[str], Run]) -> None:
        self.root = storage.absolute(root)
        self._load = load
        self._runs: OrderedDict[str, LiveRun] = OrderedDict()
        self._lock = threading.Lock()
        self._rows: tuple[float, list[dict[str, Any]]] = (-LIST_S, [])

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of each run, newest first, see `sparkdl.runs.history.history`."""
        with self._lock:
            read_s, known = self._rows
            if time.monotonic() - read_s < LIST_S:
                return known
            # Times become seconds since 1970, and missing values null.
            rows: list[dict[str, Any]] = json.loads(
                history(self.root).to_json(orient="records", date_unit="s")
            )
            self._rows = time.monotonic(), rows
        return rows

    def get(self, run_id: str) -> LiveRun:
        """Return a run; one that was read before is returned at once, and read again beside.

        Args:
            run_id: the name of the run directory.

        Raises:
            RunNotFoundError: if there is no such run.
            RunDamagedError: if its files cannot be read.
        """
        with self._lock:
            if live := self._runs.get(run_id):
                self._runs.move_to_end(run_id)
        if live:
            threading.Thread(target=live.refresh, daemon=True).start()
            return live
        live = LiveRun(storage.join(self.root, run_id), self._load)
        with self._lock:
            live = self._runs.setdefault(run_id, live)
            while len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)
        return live


def _marks_of(path: str) -> Any:
    """Return values that change whenever the journal of a run grows."""
    folder = RunPaths(path).journal
    names = sorted(storage.list_names(folder))
    if not storage.appends(folder):
        return names  # Each write is a new file.
    return [(name, storage.size(storage.join(folder, name))) for name in names]
