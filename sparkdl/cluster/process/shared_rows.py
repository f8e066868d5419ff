"""Runs in a Spark task. Convert the rows of a run once for all its trials on an executor.

The first task sends the rows to its own training process, and the same files become the copy for
the others: a small process holds their descriptors, see `row_holder`, and passes them on. Until
then the other tasks wait. There is a copy only if it is complete, and it disappears with the
processes that use it: there is nothing to recognize as incomplete, old, or of another user.

```
<Spark's local directory>/sparkdl-rows/<key>/  locked by the task that writes
                                            /socket      of the process that holds the copy
                                            /unfinished  a byte for each task that ended too early
                                            /none        each trial gets its rows from Spark
```
"""

import contextlib
import errno
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from sparkdl.cluster.environ import without_credentials
from sparkdl.cluster.executor_folder import executor_folder
from sparkdl.cluster.process.row_holder import COPY, IDLE_S, LEAVE, MAX_DESCRIPTORS
from sparkdl.cluster.process.server_folder import dial, locked
from sparkdl.cluster.spark_errors import NO_COPY
from sparkdl.data.dataframe.protocol import Feed, RowCopy

FOLDER = "sparkdl-rows"

POLL_S = 0.05
# Seconds for the process that holds the copy to answer: a busy host may have swapped it out.
ANSWER_S = 60.0
# Share of the free space of the disk that the copy may take.
MAX_SHARE = 0.5
# While a task writes, others wait: after so many tasks that ended before all rows were there, each
# trial gets its rows from Spark.
MAX_UNFINISHED = 2

_logger = logging.getLogger("sparkdl.cluster")


class NoCopyError(RuntimeError):
    """The trial was to read a copy of the rows that this executor does not have."""


class SharedRows:
    """The copy of the rows of one run, as a task of it sees it.

    Args:
        folder: the folder of the copy.
        idle_s: seconds without a task after which the copy is removed.

    Attributes:
        is_writing: True while other tasks wait for the rows that this task writes.
    """

    def __init__(self, folder: Path, idle_s: float = IDLE_S) -> None:
        self._folder = folder
        self._idle_s = idle_s
        self._lock = contextlib.ExitStack()
        self._use = contextlib.ExitStack()
        self._max_bytes = 0
        self._copy: RowCopy | None = None
        self.is_writing = False

    @classmethod
    def of(cls, feed: Feed) -> "SharedRows | None":
        """Return the copy of a run; None if the run or this executor does not share one."""
        base = executor_folder(FOLDER) if feed.copy_key else None
        return cls(base / feed.copy_key) if base and feed.copy_key else None

    @classmethod
    @contextlib.contextmanager
    def reserve(cls, feed: Feed) -> "Iterator[SharedRows]":
        """Return the copy of a run, which stays until the block ends.

        Raises:
            NoCopyError: if there is no copy on this executor, or it cannot be got.
        """
        shared = cls.of(feed)
        why = ""
        if shared is not None:
            try:
                shared._copy = shared._find()
            except OSError as exc:
                why = f": {exc}"
        try:
            if shared is None or shared._copy is None:
                raise NoCopyError(f"{NO_COPY} on host {socket.gethostname()}{why}")
            yield shared
        finally:
            if shared is not None:
                shared.close()

    def wait(self, end: threading.Event) -> RowCopy | None:
        """Wait until there is a copy, and return it.

        Returns:
            None if this task gets its rows from Spark: it is the one that writes, or there will be
            no copy, or it has ended.
        """
        if self._copy:
            return self._copy
        try:
            while not self._none.exists():
                self._folder.mkdir(mode=0o700, exist_ok=True)
                if copy := self._find():
                    return copy
                if self._lock.enter_context(locked(self._folder, wait=False)):
                    return self._find_or_begin()
                self._lock.close()
                if end.wait(POLL_S):
                    break
        except OSError as exc:
            self._lock.close()
            _logger.warning("the rows on this host are not shared by the trials: %s", exc)
        return None

    @property
    def _none(self) -> Path:
        return self._folder / "none"

    def _find_or_begin(self) -> RowCopy | None:
        """Return a copy that was completed a moment ago, or begin to write one."""
        copy = self._find()
        if copy or self._none.exists():
            self._lock.close()
            return copy
        self._clear_others()
        self._max_bytes = int(MAX_SHARE * shutil.disk_usage(self._folder).free)
        self.is_writing = True
        return None

    def _clear_others(self) -> None:
        """Ask for the end of unused copies of other runs, and remove folders without a process.

        A run that still goes on makes its folder again, and then tries again to make a copy.
        """
        for other in self._folder.parent.iterdir():
            with contextlib.suppress(OSError), locked(other, wait=False) as is_free:
                try:
                    with dial(other) as connection:
                        connection.send(LEAVE)
                except (FileNotFoundError, ConnectionRefusedError):
                    if is_free:  # No task is writing there.
                        shutil.rmtree(other)

    def _find(self) -> RowCopy | None:
        """Return the copy if there is one; it stays at least until `close`."""
        try:
            connection = self._use.enter_context(dial(self._folder))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        connection.settimeout(ANSWER_S)
        descriptors: list[int] = []
        self._use.callback(_close, descriptors)
        try:
            connection.send(COPY)
            number = None
            while len(descriptors) != number:
                answer, some, flags, _ = socket.recv_fds(connection, 16, MAX_DESCRIPTORS)
                if not answer:
                    raise ConnectionResetError("the process that holds the copy has ended")
                descriptors += some
                if flags & socket.MSG_CTRUNC:
                    raise OSError(errno.EMFILE, "the copy has more files than may be open here")
                number = int(answer)
        except ConnectionError:
            self._use.close()
            return None
        index, *files = descriptors
        return RowCopy(os.pread(index, os.fstat(index).st_size, 0), files)

    def has_room(self, num_bytes: int) -> bool:
        """Return True if the copy may have a number of bytes: half of what was free before it."""
        return num_bytes <= self._max_bytes

    def keep(self, copy: RowCopy) -> bool:
        """Share a complete copy with the tasks that wait, and with later ones.

        Returns:
            True if that was possible.
        """
        try:
            self._start_holder(copy)
            self._use.enter_context(dial(self._folder))
            return True
        except subprocess.CalledProcessError as exc:
            self.give_up(f"the process to hold it has ended with exit code {exc.returncode}")
        except OSError as exc:
            self.give_up(f"no process can hold it: {exc}")
        finally:
            self._stop_writing()
        return False

    def _start_holder(self, copy: RowCopy) -> None:
        with tempfile.TemporaryFile(dir=self._folder) as index:
            index.write(copy.headers)
            index.flush()
            descriptors = [index.fileno(), *copy.descriptors]
            # The same modules as in this worker, whatever way they reached it.
            start = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                "from sparkdl.cluster.process.row_holder import main; "
                f"main({str(self._folder)!r}, {descriptors}, {self._idle_s})"
            )
            subprocess.run(
                [sys.executable, "-c", start],
                env=without_credentials(os.environ, ""),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # The daemon must not keep that of the executor open.
                check=True,
                pass_fds=descriptors,
            )

    def give_up(self, why: str) -> None:
        """Let each trial on this executor get its rows from Spark."""
        _logger.warning(
            "the trials on this host share no copy of their rows, since %s. Spark converts the "
            "rows for each trial",
            why,
        )
        with contextlib.suppress(OSError):
            self._none.touch()
        self._stop_writing()

    def _stop_writing(self) -> None:
        self.is_writing = False
        self._lock.close()

    def close(self) -> None:
        """Need the copy no more; a copy that is not complete is written anew by another task."""
        if self.is_writing:
            unfinished = self._folder / "unfinished"
            with unfinished.open("ab") as file:
                file.write(b".")
            if unfinished.stat().st_size >= MAX_UNFINISHED:
                self.give_up(f"{MAX_UNFINISHED} trials have ended before all rows had arrived")
        self._stop_writing()
        self._use.close()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
