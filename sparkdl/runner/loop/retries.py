"""Runs on the driver. Decide whether a failed trial is run again."""

import math
import time
from collections import Counter

from sparkdl.options import Options
from sparkdl.runner.loop.submitted import SubmittedTrial
from sparkdl.runs.retry_choice import OUTSIDE
from sparkdl.runs.states import Failure

# A gang whose port was taken by another program starts again with other ports, this many times.
MAX_PORT_RETRIES = 3

# A trial whose Spark job was cancelled outside its run starts again, this many times. The kill link
# of Spark's page means this job; `cancelAllJobs` was probably meant for other jobs.
MAX_OUTSIDE = 1

# An attempt that is lost sooner than this after its submission has done nothing yet. A trial with
# MAX_SHORT_LIVES such attempts in a row is given up: its executors probably never start.
SHORT_LIFE_S = 10.0
MAX_SHORT_LIVES = 5


class Retries:
    """The number of failures of each trial, compared with the budgets of the user.

    Lost executors (`max_losses`), failures of the user's function (`max_restarts`), taken ports and
    jobs that were cancelled outside the run have separate budgets.

    Args:
        options: the budgets.
        is_gang: a trial has several processes that communicate.

    Example:
        >>> retries = Retries(Options(max_restarts=1), is_gang=False)
        >>> retries.allow(0, Failure.EXCEPTION), retries.allow(0, Failure.EXCEPTION)
        (True, False)
        >>> retries.allow(0, Failure.LOST)
        True
    """

    def __init__(self, options: Options, is_gang: bool) -> None:
        self._options = options
        self._is_gang = is_gang
        self._num_failures: Counter[tuple[int, str]] = Counter()
        self._num_short_lives: Counter[int] = Counter()

    def allow(self, number: int, failure: str, lived_s: float = math.inf) -> bool:
        """Count a failure of a trial; return True if its budget allows another attempt.

        Args:
            number: the number of the trial.
            failure: the kind of the failure, see `sparkdl.runs.states.Failure`, or `OUTSIDE`.
            lived_s: seconds between the submission of the attempt and its end.
        """
        budget = self._budget_of(failure)
        self._num_failures[number, budget] += 1
        is_short = lived_s < SHORT_LIFE_S
        self._num_short_lives[number] = self._num_short_lives[number] + 1 if is_short else 0
        if budget == "loss" and self._num_short_lives[number] >= MAX_SHORT_LIVES:
            return False
        limits = {
            "loss": self._options.max_losses,
            "port": MAX_PORT_RETRIES,
            "outside": MAX_OUTSIDE if self._options.max_losses != 0 else 0,
            "crash": self._options.max_restarts,
        }
        limit = limits[budget]
        return limit is None or self._num_failures[number, budget] <= limit

    def allow_after(self, submitted: SubmittedTrial, failure: str) -> bool:
        """Count the failure of an attempt that has ended, see `allow`."""
        if failure == OUTSIDE and submitted.is_recalled:
            return True  # It started while its job was being cancelled.
        lived_s = time.monotonic() - submitted.submitted_s
        return self.allow(submitted.trial.number, failure, lived_s)

    def _budget_of(self, failure: str) -> str:
        if failure == Failure.LOST:
            return "loss"
        if failure == OUTSIDE:
            return "outside"
        return "port" if failure == Failure.PORT and self._is_gang else "crash"
