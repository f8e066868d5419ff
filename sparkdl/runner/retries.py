"""Runs on the driver (pure). When a run stops, and how much of it runs at once."""

import math
from collections import Counter
from dataclasses import dataclass

from sparkdl.runs.states import Failure

__all__ = ["Limits", "Retries"]

# How often a gang meets again on other ports, where something else took one.
MOST_PORTS = 3

# An attempt that is lost sooner than this after it was submitted has not come to do anything.
SHORT_LIFE_S = 10.0
MOST_SHORT_LIVES = 5


@dataclass(frozen=True)
class Limits:
    """When to stop, and how much at once. None is no limit.

    Attributes:
        parallelism: trials at once; None takes as many as Spark has slots.
        timeout_s: seconds for all trials together, from when the first is submitted.
        max_failed_trials: end the run when more trials than this have failed.
        fail_fast_identical: end it when the first so many trials all failed with one error.
        max_restarts: how often a trial is run again after its function raised or crashed.
        max_losses: how often a trial is run again after its executor was lost.
    """

    parallelism: int | None = None
    timeout_s: float | None = None
    max_failed_trials: int | None = None
    fail_fast_identical: int | None = None
    max_restarts: int = 0
    max_losses: int | None = None


class Retries:
    """Counts what went wrong with each trial, and says whether it may be run again.

    A loss of Spark's, a crash of the person's and a port that was taken are budgets of their own.

    Example:
        >>> retries = Retries(Limits(max_restarts=1), is_gang=False)
        >>> retries.again(0, Failure.EXCEPTION), retries.again(0, Failure.EXCEPTION)
        (True, False)
        >>> retries.again(0, Failure.LOST)
        True
    """

    def __init__(self, limits: Limits, is_gang: bool) -> None:
        self._limits, self._is_gang = limits, is_gang
        self._seen: Counter[tuple[int, str]] = Counter()
        self._short: Counter[int] = Counter()

    def again(self, number: int, failure: str, lived_s: float = math.inf) -> bool:
        """Count this failure of a trial; whether its budget allows another attempt.

        What is lost again and again as soon as it starts is not a matter of budget.

        Args:
            number: the trial's.
            failure: of which kind it is, see `cluster.ends.Failure`.
            lived_s: how long the attempt was, in seconds.
        """
        kind = self._kind(failure)
        self._seen[number, kind] += 1
        self._short[number] = self._short[number] + 1 if lived_s < SHORT_LIFE_S else 0
        if kind == "loss" and self._short[number] >= MOST_SHORT_LIVES:
            return False
        most = {"loss": self._limits.max_losses, "port": MOST_PORTS}.get(
            kind, self._limits.max_restarts
        )
        return most is None or self._seen[number, kind] <= most

    def _kind(self, failure: str) -> str:
        if failure == Failure.LOST:
            return "loss"
        return "port" if failure == Failure.PORT and self._is_gang else "crash"
