"""Runs anywhere. Polling of files that other processes write: how often, and when it fails.

Driver and executors talk through files in the run directory. Whoever waits for such a file looks
at it again and again: often on a local disk, less often on a remote store, which charges for each
request. A store may also fail for a moment; a loop then goes on and looks again.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from sparkdl.files import storage

LOCAL_POLL_S = 0.2
REMOTE_POLL_S = 2.0

# Processes that poll a store at the same time ask it, together, about this often; each of them asks
# at least once in MAX_SHARED_S seconds.
SHARED_PER_S = 3.0
MAX_SHARED_S = 30.0

# How long a store that fails is tried again, and the longest pause between two tries.
RETRY_S = 300.0
MAX_PAUSE_S = 30.0

# Errors that are the answer of a store that works.
_ANSWERS = (
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
)

T = TypeVar("T")

_logger = logging.getLogger("sparkdl.files")


def poll_s(url: str, local_s: float = LOCAL_POLL_S, remote_s: float = REMOTE_POLL_S) -> float:
    """Return the seconds between two looks at a place that another process writes to.

    Args:
        url: the file or folder that is looked at.
        local_s: seconds where the place is on a local or mounted disk.
        remote_s: seconds where the place is on a remote store.

    Example:
        >>> poll_s("/runs/a"), poll_s("s3://bucket/runs/a")
        (0.2, 2.0)
    """
    return local_s if storage.is_local(url) else remote_s


def shared_s(least_s: float, num_sharing: int) -> float:
    """Return the pause between two requests of a process that shares a remote store with others.

    Args:
        least_s: the pause where few processes share the store, in seconds.
        num_sharing: number of processes that make such requests at the same time.

    Example:
        >>> [shared_s(5.0, n) for n in (1, 30, 1000)]
        [5.0, 10.0, 30.0]
    """
    return max(least_s, min(num_sharing / SHARED_PER_S, MAX_SHARED_S))


def pause_s(num_failures: int) -> float:
    """Return the pause before the next try, in seconds; it doubles with each failure in a row.

    Example:
        >>> [pause_s(n) for n in (1, 2, 3, 10)]
        [0.5, 1.0, 2.0, 30.0]
    """
    return min(0.5 * 2.0 ** min(num_failures - 1, 10), MAX_PAUSE_S)


def retry(action: Callable[[], T], activity: str, timeout_s: float | None = None) -> T:
    """Call a function again until the store answers, with one warning and growing pauses.

    Args:
        action: reads or writes; calling it twice is harmless.
        activity: what it does, for the log, such as `write the outputs of a trial`.
        timeout_s: seconds after which the last error is raised; None means `RETRY_S`.

    Raises:
        OSError: if the store still fails then. A missing file, a file that exists already, and
            refused access are no failures of the store, and raised at once.
    """
    deadline = time.monotonic() + (RETRY_S if timeout_s is None else timeout_s)
    num_failures = 0
    while True:
        try:
            return action()
        except _ANSWERS:
            raise
        except OSError as exc:
            num_failures += 1
            wait_s = min(pause_s(num_failures), deadline - time.monotonic())
            if wait_s <= 0:
                raise
            if num_failures == 1:
                _logger.warning("failed to %s: %s. Trying again.", activity, exc)
            time.sleep(wait_s)


def create_once(url: str, text: str, activity: str, timeout_s: float | None = None) -> bool:
    """Create a file that only one process can create; return False if another one has created it.

    Args:
        url: the file.
        text: its content, which no other process writes.
        activity: see `retry`.
        timeout_s: see `retry`.

    Raises:
        OSError: if the store still fails then.
    """
    try:
        retry(lambda: storage.create(url, text), activity, timeout_s)
    except FileExistsError:
        # The store may have written the file and then reported a failure.
        return retry(lambda: storage.read(url), activity, timeout_s) == text.encode()
    return True


class Outages:
    """Tolerate the failures of a store in a loop, and log the first and every tenth in a row.

    Args:
        activity: the operation that is repeated, for the log.

    Example:
        >>> outages = Outages("list the files of the ranks")
        >>> with outages.tolerated():
        ...     raise OSError("the store is busy")
        >>> outages.in_a_row
        1
        >>> with outages.tolerated():
        ...     pass
        >>> outages.in_a_row
        0
    """

    def __init__(self, activity: str) -> None:
        self._activity = activity
        self.in_a_row = 0

    @contextlib.contextmanager
    def tolerated(self) -> Iterator[None]:
        """Suppress an OSError of the block and count it; a success resets the count."""
        try:
            yield
        except OSError as exc:
            self.in_a_row += 1
            if self.in_a_row == 1 or self.in_a_row % 10 == 0:
                _logger.warning(
                    "failed to %s (%d times in a row): %r. Trying again.",
                    self._activity,
                    self.in_a_row,
                    exc,
                )
        else:
            self.in_a_row = 0
