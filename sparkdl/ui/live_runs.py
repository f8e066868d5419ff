"""Runs on the driver. The runs and models below a root, read again when their files change."""

import functools
import threading
import time
import zlib
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sparkdl.errors import RunNotFoundError
from sparkdl.files import storage
from sparkdl.files.jsonl import Tail
from sparkdl.files.layout import RunPaths, TrialPaths
from sparkdl.files.polling import poll_s
from sparkdl.models.registry import list_versions
from sparkdl.models.version import ModelVersion
from sparkdl.runner.control.loaded_run import LoadedRunHandle
from sparkdl.runs.history import DRIVER_ENDED, load, read_rows
from sparkdl.runs.owner import OwnerWatch
from sparkdl.runs.run import Run
from sparkdl.runs.states import RunState, TrialState
from sparkdl.ui.refreshed import Refreshed

# Seconds between two looks at all runs and models, and at one run: on a disk, and on a store.
LIST_S = (2.0, 10.0)
LOOK_S = (1.0, 5.0)
# A driver that dies writes nothing: it is looked for again after so many seconds.
DRIVER_S = 10.0
# The runs that are kept in memory, and the running trials whose reports are followed.
MAX_RUNS = 20
MAX_FOLLOWED = 64


@dataclass(frozen=True)
class Snapshot:
    """A run as it was read at a time.

    Attributes:
        version: a text that no snapshot with another content has.
        run: the run.
        figures: the figures that were made as JSON, by name; None for one without enough data.
    """

    version: str
    run: Run
    figures: dict[str, str | None] = field(default_factory=dict)

    @functools.cached_property
    def best(self) -> set[int]:
        """The numbers of the best trial, or of the Pareto front."""
        return {trial.number for trial in self.run.pareto}


class LiveRun:
    """A run that goes on or has ended.

    Args:
        path: the run directory.

    Attributes:
        refreshed: the snapshot of the run.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._marks: Any = None
        self._owner = OwnerWatch(RunPaths(path))
        self._looked_s = 0.0
        self._snapshot: Snapshot | None = None
        self._reports = Tail()
        # The last value of each metric that a running trial has reported, by file.
        self._last: dict[str, dict[str, Any]] = {}
        self._attempts: dict[str, int] = {}
        self.refreshed = Refreshed(self._look, poll_s(path, *LOOK_S))

    def _look(self) -> Snapshot:
        """Read what is new, and return the snapshot; the same one if nothing is new."""
        old = self._snapshot
        marks = _marks_of(self._path)
        if old is None or marks != self._marks or self._driver_has_changed(old.run):
            run = load(self._path, self._owner)
            run.attach(LoadedRunHandle(run))
            self._marks = marks
            self._looked_s = time.monotonic()
        else:
            run = old.run
        if self._follow(run) or old is None or run is not old.run:
            old = self._snapshot = Snapshot(self._version_of(run), run)
        return old

    def _version_of(self, run: Run) -> str:
        if run.state == RunState.RUNNING:
            return f"{time.time_ns():x}"
        # Whoever compares more runs than are kept reads the same run again and again.
        return f"{zlib.crc32(repr((self._marks, run.state)).encode()):x}"

    def _driver_has_changed(self, run: Run) -> bool:
        """Return True if the driver of a run has died, or is there again after a silence."""
        is_open = run.state == RunState.RUNNING or run.reason == DRIVER_ENDED
        if not is_open or time.monotonic() - self._looked_s < DRIVER_S:
            return False
        self._looked_s = time.monotonic()
        return self._owner.sees_driver() != (run.state == RunState.RUNNING)

    def _follow(self, run: Run) -> bool:
        """Give the running trials the values that they have reported; return True for new ones."""
        trials = [trial for trial in run.trials if trial.state == TrialState.RUNNING]
        running = {TrialPaths(trial.path).metrics: trial for trial in trials[:MAX_FOLLOWED]}
        for url, trial in running.items():
            if self._attempts.get(url) != trial.attempts:  # The next attempt begins another file.
                self._attempts[url] = trial.attempts
                self._reports.forget(url)
        lines = self._reports.read(running)
        for url, line in lines:
            self._last[url] = {**self._last.get(url, {}), **line.get("metrics", {})}
        for url, trial in running.items():
            if url in self._last:
                trial.metrics = {**trial.metrics, **self._last[url]}
        return bool(lines)


class LiveRuns:
    """The runs and the models below a root.

    Args:
        root: the directory or URL that holds the runs.
    """

    def __init__(self, root: str) -> None:
        self.root = storage.absolute(root)
        self._runs: OrderedDict[str, LiveRun] = OrderedDict()
        self._lock = threading.Lock()
        self._rows = Refreshed(self._read_rows, poll_s(self.root, *LIST_S))
        self._models = Refreshed(lambda: list_versions(root=self.root), poll_s(self.root, *LIST_S))

    def rows(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Return a row of each run, and the folders that cannot be read with the reasons."""
        return self._rows.get()

    def models(self) -> list[ModelVersion]:
        """Return all versions of all models, by name and number."""
        return self._models.get()

    def get(self, run_id: str) -> LiveRun:
        """Return a run.

        Args:
            run_id: the name of the run directory.

        Raises:
            RunNotFoundError: if there is no such run.
            RunDamagedError: if its files cannot be read.
        """
        if run_id.startswith(".") or set(run_id) & set("/\\\0"):
            raise RunNotFoundError(f"no run {run_id!r}; expected the name of a folder in the root.")
        with self._lock:
            live = self._runs.setdefault(run_id, LiveRun(storage.join(self.root, run_id)))
            self._runs.move_to_end(run_id)
            while len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)
        try:
            live.refreshed.get()
        except Exception:
            with self._lock:
                self._runs.pop(run_id, None)
            raise
        return live

    def snapshot(self, run_id: str) -> Snapshot:
        """Return a run as it was read last; it is read again beside. See `get`."""
        return self.get(run_id).refreshed.get()

    def _read_rows(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        rows, unreadable = read_rows(self.root)
        for row in rows:
            row["started"] = _seconds(row["started"])
            # The address of the run on the page: a copy of a run has the id of the original.
            row["folder"] = row.pop("path").rsplit("/", 1)[1]
        return sorted(rows, key=lambda row: row["started"] or 0, reverse=True), unreadable


def _seconds(time_text: str) -> float | None:
    """Return a time as seconds since 1970; None if the text is no time."""
    try:
        return datetime.strptime(time_text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (ValueError, TypeError):
        return None


def _marks_of(path: str) -> Any:
    """Return values that change whenever the journal or the annotations of a run change."""
    paths = RunPaths(path)
    names = sorted(storage.list_names(paths.journal))
    notes = storage.list_names(paths.notes)
    if not storage.grows(paths.journal):
        return names, notes  # Each write is a new file.
    return [(name, storage.size(storage.join(paths.journal, name))) for name in names], notes
