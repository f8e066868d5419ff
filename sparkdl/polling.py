"""Runs anywhere. Polling of files that other processes write: how often, and when it fails.

Driver and executors talk through files in the run directory. Whoever waits for such a file looks
at it again and again: often on a local disk, less often on a remote store, which charges for each
request. A store may also fail for a moment; a loop then goes on and looks again.
"""

import contextlib
import logging
from collections.abc import Iterator

from sparkdl import storage

__all__ = ["LOCAL_POLL_S", "REMOTE_POLL_S", "Outages", "poll_s"]

LOCAL_POLL_S = 0.2
REMOTE_POLL_S = 2.0

_logger = logging.getLogger("sparkdl.polling")


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
