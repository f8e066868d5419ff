"""Runs in a Spark task. Notice that the driver of a run has gone, where Spark does not notice."""

import math
import time

from sparkdl.files.layout import RunPaths
from sparkdl.runs.owner import read_beat

LOOK_S = 10.0


class DriverWatch:
    """Notice the end of the driver that has submitted a task.

    With Spark Connect, the death of the client ends no task: trials would train on, and no driver
    reads their results.

    Args:
        paths: the run directory.
        number: the number of the driver among the owners of the run; 0 if Spark itself ends the
            tasks of a driver that has gone.
        silence_s: seconds without a heartbeat after which the driver has gone. A driver on a
            suspended laptop may come back; its heartbeat is due every few seconds.

    Attributes:
        has_gone: True if a call has returned a reason.
    """

    def __init__(self, paths: RunPaths, number: int, silence_s: float) -> None:
        self.has_gone = False
        self._paths = paths
        self._number = number
        self._silence_s = silence_s
        self._beat: bytes | None = b""
        self._looked_s = -math.inf
        self._alive_s = time.monotonic()

    def __call__(self) -> str | None:
        """Return the reason for which the process must end, or None; called often, looks rarely."""
        now = time.monotonic()
        if not self._number or now - self._looked_s < LOOK_S:
            return None
        self._looked_s = now
        try:
            beat = read_beat(self._paths, self._number)
        except OSError:
            self._alive_s = now  # The store says nothing about the driver.
            return None
        if beat is None:
            self.has_gone = True
            return "the driver that started this attempt has ended"
        if beat != self._beat:
            self._beat, self._alive_s = beat, now
        silent_s = now - self._alive_s
        if silent_s < self._silence_s:
            return None
        self.has_gone = True
        return f"the driver that started this attempt has been silent for {silent_s:.0f} s"
