"""Runs on the driver. Tell running trials that their executors are about to end."""

import logging
import math
import time
from collections.abc import Callable, Iterable

from sparkdl.cluster.base import Cluster
from sparkdl.runner.loop.submitted import SubmittedTrial
from sparkdl.runner.loop.trial_messages import TrialMessages

# Seconds between two questions to Spark. A host that goes away gives notice of 30 seconds or more.
LOOK_S = 1.0

_logger = logging.getLogger("sparkdl.runner")


class LeavingExecutors:
    """The notices to running trials, after which `context.should_stop` returns True.

    Args:
        cluster: knows the executors that are about to end.
        say: shows a line to the user.
    """

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._say = say
        self._looked_s = -math.inf
        self._notified: set[tuple[int, int]] = set()

    def look(self, submitted: Iterable[SubmittedTrial], messages: TrialMessages) -> None:
        """Notify each attempt, once, whose executor is about to end.

        Args:
            submitted: the trials that Spark has; those whose executor is unknown get no notice.
            messages: sends the notices.
        """
        now = time.monotonic()
        if now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        waiting = [
            s
            for s in submitted
            if s.executor
            and s.has_started
            and (s.trial.number, s.newest_attempt) not in self._notified
        ]
        leaving = self._leaving() if waiting else frozenset()
        for s in waiting:
            if s.executor in leaving and messages.notify(s.trial):
                self._notified.add((s.trial.number, s.newest_attempt))
                self._say(
                    f"[trial {s.trial.number}] executor {s.executor} on host {s.host} is being "
                    "decommissioned; context.should_stop() is now True in the trial"
                )

    def _leaving(self) -> frozenset[str]:
        try:
            return self._cluster.leaving
        except Exception as exc:  # noqa: BLE001 A Spark that has ended says so at the next job.
            _logger.debug("Spark does not tell which executors end: %r", exc)
            return frozenset()
