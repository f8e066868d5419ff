"""Runs in a Spark task (pure). The time limits of a training process."""

import math
from dataclasses import dataclass

# A process that has sent its outcome gets this long for its threads and exit functions.
EXIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The kill of a process by its task.

    Attributes:
        at: the time of the kill.
        timed_out: the function ran for too long.
        late: the function was not called in time.
        stopped: the reason, in words; None where another field says enough.
        remark: a line for the log of the process.
    """

    at: float
    timed_out: bool = False
    late: bool = False
    stopped: str | None = None
    remark: str | None = None


@dataclass(kw_only=True)
class TimeLimits:
    """The limits of one process, whose times are on the monotonic clock.

    Attributes:
        begun: the time at which the process was requested.
        started: the time at which its function was called; None before.
        ended: the time at which its outcome was complete; None before.
        timeout_s: seconds in its function; None for no limit.
        start_s: seconds until its function is called; None for no limit.

    Example:
        >>> limits = TimeLimits(begun=10.0, timeout_s=5.0, start_s=300.0)
        >>> limits.next()
        310.0
        >>> limits.started = 20.0
        >>> limits.next(), limits.overdue(now=24.0), limits.overdue(now=25.0).timed_out
        (25.0, None, True)
    """

    begun: float
    started: float | None = None
    ended: float | None = None
    timeout_s: float | None = None
    start_s: float | None = None

    def next(self) -> float:
        """Return the time of the next limit, or infinity."""
        if self.ended is not None:
            return self.ended + EXIT_S
        if self.started is not None:
            return math.inf if self.timeout_s is None else self.started + self.timeout_s
        return math.inf if self.start_s is None else self.begun + self.start_s

    def overdue(self, now: float) -> Kill | None:
        """Return the kill that is due; None before the next limit."""
        if now < self.next():
            return None
        if self.ended is not None:
            remark = (
                f"the function has returned, but the process did not end within {EXIT_S:g} s, "
                "because of its threads or exit functions. The process was ended, and the result "
                "is kept."
            )
            return Kill(at=now, remark=remark)
        if self.started is not None:
            return Kill(at=now, timed_out=True)
        reason = (
            f"its function was not called within {self.start_s:g} s: an import that it needs "
            "hangs, or takes longer. Import slow modules inside the function, or raise "
            "SPARKDL_START_TIMEOUT_S"
        )
        return Kill(at=now, late=True, stopped=reason)
