"""Runs on the driver. Let the clock end windows while a log is idle."""

import time

from sparkdl.files import storage
from sparkdl.models.watch_files import ResultFiles


class Ticker:
    """Writes a tick, which `logs.tick_source` reads, when no request has come for a while.

    Args:
        files: the files of the watch.
        idle_s: seconds without a request after which the clock ends windows; None for never.
        window_s: the length of a window in seconds.
        late_s: seconds for which a window is kept open after its end.
    """

    def __init__(
        self, files: ResultFiles, idle_s: float | None, window_s: float, late_s: float
    ) -> None:
        self._window_ms, self._late_ms = int(window_s * 1000), int(late_s * 1000)
        self._files = files
        self._idle_ms = None if idle_s is None else int(idle_s * 1000)
        if self._idle_ms is None:
            return
        ticks = [int(name) for name in storage.list_names(files.ticks) if name.isdecimal()]
        self._last_tick_ms = max(ticks, default=0)
        self._newest_ms = files.read_newest()

    def note(self, newest_ms: int | None) -> None:
        """Note the time of the newest request of a batch; None without one."""
        if self._idle_ms is not None and newest_ms is not None:
            self._newest_ms = max(self._newest_ms or 0, newest_ms)

    def tick_if_idle(self, until_ms: int | None = None) -> bool:
        """Write a tick if no request to the model has come for a while; return True if so.

        Args:
            until_ms: the time until which the log was read; by default now.
        """
        if self._idle_ms is None:
            return False
        now_ms = _now_ms() if until_ms is None else until_ms
        # A log of which nothing is known may have had requests until now.
        self._newest_ms = self._newest_ms or now_ms
        if now_ms - self._newest_ms < self._idle_ms:
            return False
        before = self._num_ended(max(self._newest_ms, self._last_tick_ms))
        if before > self._newest_ms // self._window_ms or before == self._num_ended(now_ms):
            return False  # All windows have ended, or no other one would end now.
        storage.write(storage.join(self._files.ticks, f"{now_ms:015}"), b"")
        self._last_tick_ms = now_ms
        return True

    def _num_ended(self, time_ms: int) -> int:
        """Return the number of windows since 1970 that have ended for a stream at a time."""
        return (time_ms - self._late_ms) // self._window_ms

    def keep(self) -> None:
        """Write the time of the newest request, for the next call."""
        if self._idle_ms is not None and self._newest_ms is not None:
            self._files.write_newest(self._newest_ms)


def _now_ms() -> int:
    return int(time.time() * 1000)
