"""Runs on the driver. Decide how many trials run at once, and how many wait inside Spark."""

import logging
import os
import resource
import time
from collections.abc import Callable

from sparkdl.cluster.slots import Slots

# Seconds between two counts of the slots.
RECOUNT_S = 2.0

# Where Spark adds executors while tasks wait, at least this many processes wait.
MIN_WAITING = 16

# Open files of this process: for the program and its logs, and for each Spark job (its thread's
# connection to Java, the connection that brings its rows, and one to spare).
RESERVED_FILES = 128
FILES_PER_JOB = 3

_logger = logging.getLogger("sparkdl.runner")


class Concurrency:
    """The rule for the number of trials that are submitted at once.

    Args:
        count_slots: returns the number of slots that the cluster has now.
        parallelism: the largest number of trials at once that the user allows, or None.
        is_enforced: the cluster itself never runs more processes than it has slots.
        size: number of processes of one trial, each in a slot of its own.
        most: number of processes that one trial may have later on; by default `size`.
        ahead: submit some trials before there is a slot for them; otherwise each trial is
            proposed from all that is known when its slot becomes free.

    Attributes:
        slots: the slots at the last count.
    """

    def __init__(
        self,
        count_slots: Callable[[], Slots],
        parallelism: int | None = None,
        is_enforced: bool = True,
        size: int = 1,
        ahead: bool = True,
        most: int | None = None,
    ) -> None:
        self._count_slots = count_slots
        self._parallelism = parallelism
        self._is_enforced = is_enforced
        self._size = size
        self._most = most or size
        self._ahead = ahead
        self._counted_s = time.monotonic()
        self._short_since: float | None = None
        # Counted once: later on, jobs of this run are among the open files.
        self._num_open = _num_open_files()
        self.slots = count_slots()

    def recount(self) -> None:
        """Count the slots again if the last count is older than RECOUNT_S seconds."""
        if time.monotonic() - self._counted_s > RECOUNT_S:
            self._counted_s = time.monotonic()
            self.slots = self._count_slots()

    def change(self, parallelism: int, ahead: bool) -> None:
        """Allow another number of trials at once.

        Args:
            parallelism: the largest number of trials at once.
            ahead: see `Concurrency`.
        """
        self._parallelism, self._ahead = parallelism, ahead

    @property
    def limit(self) -> int:
        """The number of trials that may run at once, at least one."""
        num_fitting = self.slots.count // self._size
        num_jobs = max(1, min(num_fitting, self._parallelism or num_fitting))
        return jobs_within_limit(num_jobs, self._num_open)

    def short_s(self) -> float:
        """Return the seconds for which there have been too few slots for a single trial.

        A lost executor may come back, so that a shortage may end by itself.
        """
        if self.slots.count >= self._size:
            self._short_since = None
            return 0.0
        now = time.monotonic()
        self._short_since = self._short_since or now
        return max(now - self._short_since, 1e-3)

    def shortage(self, for_s: float) -> str:
        """Return a sentence about slots that have been missing for some seconds."""
        available = f"{self.slots.count} ({self.slots.reason})"
        return f"{self._size} slots are needed, and for {for_s:g} s there are {available}."

    def max_submitted(self, num_started: int, num_running: int) -> int:
        """Return the number of trials that may be submitted: running ones and some that wait.

        No trial waits inside Spark before the first ones have started, which keeps their order.
        No trial waits either where something other than Spark's slots limits the number at once,
        nor for a gang: each of two waiting gangs could hold slots that the other one lacks.

        Where Spark adds executors while tasks wait, as many trials wait as run, so that the number
        of executors may double each time.

        Args:
            num_started: number of attempts that have started so far.
            num_running: number of trials that run now.
        """
        if self.slots.on_demand:
            num_waiting = max(num_running, MIN_WAITING // self._size, 1)
            return min(self.limit, num_running + num_waiting)
        is_limited = self.limit < self.slots.count or not self._is_enforced or self._size > 1
        if is_limited or not self._ahead or num_started < self.limit:
            return self.limit
        return jobs_within_limit(self.limit + max(1, self.limit // 4), self._num_open)

    def cores(self, at_once: int) -> int:
        """Return the number of CPU cores for one process.

        Args:
            at_once: number of trials that run at once, at most `limit`.
        """
        return max(1, self.slots.cores // max(1, at_once * self._most))


def jobs_within_limit(num_jobs: int, num_open: int = 0) -> int:
    """Return the number of Spark jobs, at most `num_jobs`, that this process has open files for.

    The soft limit of open files is raised as far as needed and allowed.

    Args:
        num_jobs: the number of jobs that are wanted.
        num_open: the number of files that are open without these jobs, such as those of the jobs
            of other runs.
    """
    reserved = RESERVED_FILES + num_open
    need = reserved + num_jobs * FILES_PER_JOB
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or need <= soft:
        return num_jobs
    raised = need if hard == resource.RLIM_INFINITY else min(need, hard)
    if raised > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        _logger.info("raised the limit of open files from %d to %d", soft, raised)
    return min(num_jobs, max(1, (raised - reserved) // FILES_PER_JOB))


def _num_open_files() -> int:
    """Return the number of files and sockets that this process has open, 0 where unknown."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
