"""Runs on the driver. A local folder with the event files of a run, as TensorBoard reads it."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl.board.event_files import first_event, records
from sparkdl.board.hparams import SUFFIX, end_of_session, start_of_session
from sparkdl.board.reported_curves import ReportedCurves
from sparkdl.board.trial_names import name_of
from sparkdl.files import folders, storage
from sparkdl.files.layout import TrialPaths
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures import RunView

# The files that are made here. TensorBoard finds event files by a part of the name.
_SESSION = f"events.out.tfevents.{0:010d}{SUFFIX}"
_REPORTS = f"events.out.tfevents.{0:010d}.sparkdl.reports"

# Number of trials whose files are copied from a store at the same time.
MAX_COPIES = 8


@dataclass(frozen=True)
class _Look:
    """A trial as it was before its files were looked at."""

    trial: Trial
    is_ended: bool
    attempts: int


class EventFolder:
    """A folder of event files, with a folder for each trial that is named by its parameters.

    Files of a run on a local disk are linked. Files of a run on a store are copied, and the copies
    grow with them: TensorBoard keeps its files open, and would not see a file that replaces one.
    The parameters of each trial, the values that it reports, and its last values are in files that
    are made here, so that TensorBoard shows them of running trials too.

    Args:
        folder: the folder, which is created.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True)
        self._is_closed = threading.Event()
        self._curves = ReportedCurves()
        self._names: dict[int, str] = {}
        # The attempts of each trial that has ended and whose files are complete here.
        self._complete: dict[int, int] = {}
        # The parameters of each trial that its session has, and the size of the session's start.
        self._sessions: dict[int, tuple[dict[str, Any], int]] = {}

    def close(self) -> None:
        """Let a call of `refresh` in another thread end soon."""
        self._is_closed.set()

    def refresh(self, run: RunView) -> None:
        """Add what is new of the trials that have started.

        Raises:
            OSError: if files of a trial cannot be read. The other trials are complete, and the
                next call goes on.
        """
        started = [trial for trial in list(run.trials) if trial.attempts]
        looks = [
            # Whatever is written after the end of a trial is not shown.
            _Look(trial, trial.state.is_final, trial.attempts)
            for trial in started
            if self._complete.get(trial.number) != trial.attempts
        ]
        if not looks or self._is_closed.is_set():
            return
        report_records = self._curves.new_events([look.trial for look in looks])
        for look in looks:
            self._write_own_files(run, look, report_records.get(look.trial.number, b""))
        if storage.is_local(run.path):
            problems = [self._add_all(look) for look in looks]
        else:
            with ThreadPoolExecutor(MAX_COPIES) as pool:
                problems = list(pool.map(self._add_all, looks))
        for problem in filter(None, problems):
            raise problem

    def _write_own_files(self, run: RunView, look: _Look, report_records: bytes) -> None:
        folder = self._folder_of(run, look.trial)
        if look.trial.params:
            self._write_session(run, look, folder)
        if report_records:
            with open(folder / _REPORTS, "ab") as file:
                file.write(
                    report_records if file.tell() else records(first_event(0.0)) + report_records
                )

    def _add_all(self, look: _Look) -> OSError | None:
        """Add the event files of a trial; return the error of files that cannot be read."""
        trial = look.trial
        try:
            for url in _sources(trial):
                self._add_files(url, self._folder / self._names[trial.number])
        except OSError as exc:
            return exc
        if look.is_ended:
            self._complete[trial.number] = look.attempts
        return None

    def _folder_of(self, run: RunView, trial: Trial) -> Path:
        """Return the folder of a trial; an objective in Optuna's style adds parameters later."""
        name = name_of(trial.number, trial.params, run.name)
        before = self._names.setdefault(trial.number, name)
        folder = self._folder / name
        if before != name:
            (self._folder / before).rename(folder)
            self._names[trial.number] = name
        folder.mkdir(exist_ok=True)
        return folder

    def _write_session(self, run: RunView, look: _Look, folder: Path) -> None:
        """Write the parameters of a trial; when the trial has ended, add the last values."""
        path, trial = folder / _SESSION, look.trial
        params, num_bytes = self._sessions.get(trial.number, ({}, 0))
        if params != trial.params:
            # TensorBoard sorts the rows by this text, and a browser shows no leading spaces.
            start = start_of_session(trial, f"{trial.configuration:>6}")
            path.write_bytes(start)
            num_bytes = len(start)
            self._sessions[trial.number] = trial.params, num_bytes
        if look.is_ended and path.stat().st_size == num_bytes:
            with open(path, "ab") as file:
                file.write(end_of_session(run, trial))

    def _add_files(self, url: str, folder: Path) -> None:
        is_local = storage.is_local(url)
        for name, size in folders.files_in(url).items():
            path = folder / name
            if name.endswith(SUFFIX) or self._is_closed.is_set():
                continue
            if is_local:
                _link(path, storage.local_path(url) / name)
            elif _is_shown(name):
                path.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # The next attempt has moved the file.
                    folders.continue_copy(storage.join(url, name), path, size)


def _sources(trial: Trial) -> list[str]:
    """Return the folders of event files of all attempts at a trial, the earliest attempt first.

    TensorBoard shows them as one curve: a value hides earlier values of the same step and later.
    """
    paths = TrialPaths(trial.path)
    earlier = [TrialPaths(paths.superseded(number)) for number in range(trial.attempts - 1)]
    return [attempt.tensorboard for attempt in (*earlier, paths)]


def _is_shown(name: str) -> bool:
    """Return True for a file that TensorBoard reads; programs keep others beside them."""
    return "tfevents" in os.path.basename(name) or "plugins" in name.split("/")[:-1]


def _link(path: Path, target: Path) -> None:
    if not path.exists():  # A link to a file that the next attempt has moved does not exist.
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)
