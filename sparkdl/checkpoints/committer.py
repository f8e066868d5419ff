"""Runs in the training process. Commit the checkpoints of this process, one after the other."""

import logging
import os
import shutil
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from sparkdl.checkpoints.parts import Part, check_whole
from sparkdl.checkpoints.reader import MARKER
from sparkdl.checkpoints.writer import MOVED, commit, files_of, prune
from sparkdl.files import storage
from sparkdl.files.layout import CHECKPOINTS, TrialPaths
from sparkdl.files.polling import Outages, retry
from sparkdl.files.rank_files import RankFiles
from sparkdl.training.identity import Context

_logger = logging.getLogger("sparkdl.checkpoints")


@dataclass(frozen=True)
class _Report:
    """A report with a checkpoint: the step and metrics for the marker.

    Attributes:
        number: number of the sharded checkpoint in this process; None for one of this rank alone.
        given_step: the step that the program has named, if any.
    """

    step: int
    metrics: Mapping[str, float]
    number: int | None
    given_step: int | None


class Committer:
    """Commits directories that this process reports.

    Args:
        me: the context of this process.
        is_inherited: the process was started by that of the context.

    Attributes:
        committed: path of the last checkpoint that this process has committed.
    """

    def __init__(self, me: Context, is_inherited: bool = False) -> None:
        self._me = me
        self._is_inherited = is_inherited
        # The program may change its working directory.
        self._trial = storage.absolute(me._trial_url)
        self._folder = storage.absolute(me.folder or me._trial_url)
        self._lock = threading.Lock()
        self._pending: Future[None] | None = None
        self._pending_is_sharded = False
        self._num_sharded = 0
        self.committed: str | None = None

    def commit(
        self,
        directory: str | os.PathLike[str],
        step: int,
        metrics: Mapping[str, float],
        *,
        sharded: bool = False,
        wait: bool = True,
        given_step: int | None = None,
    ) -> None:
        """Commit a directory after what is being committed, see `sparkdl.context.report`.

        Args:
            directory: the directory.
            step, metrics: for the marker.
            sharded: the directories of all ranks become one checkpoint.
            wait: return when the checkpoint is committed.
            given_step: the step that the program has named, if any.
        """
        with self._lock:
            number = None
            if sharded and self._me.world_size > 1:
                self._check_ranks()
                number, self._num_sharded = self._num_sharded, self._num_sharded + 1
            elif not self._me.is_chief:
                check_whole(directory, self._me.rank)
                return
            report = _Report(step, dict(metrics), number, given_step)
            try:
                self._finish()
                source = Path(directory)
                moved = None if wait or self._stays(source) else self._moved(source.resolve())
            except Exception as exc:
                if number is not None:
                    self._part(Path(directory), number).refuse(exc)
                raise
            if moved is None:
                self._commit(source, report)
                return
            self._pending, self._pending_is_sharded = Future(), number is not None
            arguments = (self._pending, moved, report)
            # Not a daemon: Python waits for it at the end of the process.
            threading.Thread(target=self._commit_later, args=arguments, name="commit").start()

    def finish(self, alone: bool = False) -> None:
        """Wait for the commit that goes on, and raise its error.

        Args:
            alone: the other ranks may have ended: do not wait for a commit of all ranks.
        """
        with self._lock:
            if not (alone and self._pending_is_sharded):
                self._finish()

    def _finish(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _check_ranks(self) -> None:
        """Validate that all ranks can report a sharded checkpoint.

        Raises:
            ValueError: if they cannot.
        """
        me, who = self._me, None
        if me.is_elastic:
            who = "belongs to an elastic gang"
        elif not me.is_peer:
            who = f"is {me.role} {me.index} of a {me.kind}"
        elif self._is_inherited:
            who = "is a child process of a rank"
        if who:
            raise ValueError(
                f"sharded=True is for equal ranks that stay the same, and this process {who}."
            )

    def _stays(self, source: Path) -> bool:
        """Return True if a directory must not be moved, because it is a committed checkpoint."""
        files_of(source, self._trial)
        return (source / MARKER).exists()

    def _moved(self, source: Path) -> Path:
        # Where a later attempt removes it, should this process be killed.
        name = f".{self._me.attempt}{MOVED}{uuid.uuid4().hex}"
        moved = Path(self._folder, CHECKPOINTS, name)
        moved.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.move(source, moved)
        except FileNotFoundError as exc:
            raise ValueError(
                f"checkpoint={str(source)!r} was moved away meanwhile. With wait=False each rank "
                "needs a directory of its own."
            ) from exc
        return moved

    def _commit_later(self, done: Future[None], moved: Path, report: _Report) -> None:
        try:
            self._commit(moved, report)
            storage.remove(str(moved))
        except BaseException as exc:  # noqa: BLE001
            # It is raised in the thread that trains, if that reports or returns.
            _logger.warning("a checkpoint was not committed, and its files are in %s", moved)
            done.set_exception(exc)
        else:
            done.set_result(None)

    def _commit(self, directory: Path, report: _Report) -> None:
        me, trial = self._me, self._trial
        if report.number is not None:
            part = self._part(directory, report.number)
            committed = part.commit(report.step, report.metrics, report.given_step)
        else:
            committed = retry(
                lambda: commit(directory, trial, report.step, report.metrics, me.attempt),
                "commit a checkpoint",
            )
        if committed is None:
            return
        self.committed = str(Path(committed.url).absolute())
        with Outages("remove old checkpoints").tolerated():  # The next commit removes them.
            rule = (me.keep_checkpoints, me.metric, me.direction)
            prune(trial, *rule, spare=me.checkpoint)

    def _part(self, directory: Path, number: int) -> Part:
        me = self._me
        return Part(
            source=directory,
            trial=self._trial,
            attempt=me.attempt,
            files=RankFiles(TrialPaths(self._trial).ranks(me.attempt)),
            rank=me.rank,
            size=me.world_size,
            number=number,
            timeout_s=me.peer_timeout_s,
        )
