"""Runs on the driver. Move slow ranks of an elastic gang to spare slots.

A second Spark job with one task starts another process of the rank. When that process asks for a
place, the ranks meet between two steps, and `Membership` lets it take the place of the slow one.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.cluster.gang.slow_ranks import GangNews, RankNews, SlowRank
from sparkdl.cluster.gang.standby_jobs import NO_SLOT, Standby, StandbyJobs, rank_of
from sparkdl.cluster.spark_errors import JobFailed
from sparkdl.files import storage
from sparkdl.runs.events import RankMoved

# Seconds between two tries to move a rank, and the number of tries.
PAUSE_S = 30.0
MAX_TRIES = 3
# Seconds between two looks for a spare slot, or for the process that was started.
LOOK_S = 2.0

CHIEF = "it is the chief, whose metrics cannot move in a store"


@dataclass(frozen=True, kw_only=True)
class MovedRank(RankNews):
    """A slow rank goes on at another host, or stays.

    Attributes:
        rank, host: the rank, and the host that it leaves.
        target: the host at which it goes on; None if it stays.
        reason: the reason for which it stays.
    """

    target: str | None = None
    reason: str | None = None

    def event(self, number: int, names: Sequence[str]) -> RankMoved:
        """Return the event of the journal."""
        return RankMoved(
            number=number,
            rank=self.rank,
            name=names[self.rank],
            host=self.host,
            target=self.target,
            reason=self.reason,
        )


class RankMover:
    """Moves one rank at a time, each at most once, and never to a host that a rank has left.

    Args:
        jobs: starts the new processes.
        num_spare: returns the number of slots that no task uses.
    """

    def __init__(self, jobs: StandbyJobs, num_spare: Callable[[], int]) -> None:
        self._jobs = jobs
        self._num_spare = num_spare
        self._moving: tuple[SlowRank, Standby] | None = None
        self._tries: dict[int, int] = {}
        self._next_s: dict[int, float] = {}
        self._told: set[tuple[int, str]] = set()
        self._left_nodes: set[str] = set()
        self._looked_s = 0.0

    def look(self, slow: Collection[SlowRank]) -> list[GangNews]:
        """Go on with a move, or begin one; return the news.

        Args:
            slow: the ranks that are slow now.
        """
        now = time.monotonic()
        if now - self._looked_s < LOOK_S:
            return []
        self._looked_s = now
        if self._moving:
            return self._follow(*self._moving)
        for each in slow:
            has_moved = each.rank in self._jobs.membership.moved
            if has_moved or self._tries.get(each.rank, 0) >= MAX_TRIES:
                continue
            if self._next_s.get(each.rank, now) > now:
                continue
            if each.rank == 0 and not storage.is_local(self._jobs.files.url):
                return self._stays(each, CHIEF)
            self._next_s[each.rank] = now + PAUSE_S
            if self._num_spare() < 1:
                return self._stays(each, NO_SLOT)
            self._start(each, {other.node for other in slow})
            return []
        return []

    def rows(self, rows: Sequence[Any]) -> list[Any]:
        """Return the rows of the tasks of a gang that has ended, of moved ranks the newest.

        Args:
            rows: the rows of the job of the gang.

        Raises:
            JobFailed: if the chief has moved, and its job has brought no row.
        """
        found = list(rows)
        for standby in self._jobs.end():
            try:
                moved = standby.rows.result()
            except JobFailed:
                if standby.rank:  # The others have gone on without it.
                    continue
                raise
            found = [row for row in found if rank_of(row) != standby.rank] + moved
        return sorted(found, key=rank_of)

    def _start(self, slow: SlowRank, slow_nodes: set[str]) -> None:
        """Start another process of a slow rank."""
        avoided = frozenset({*slow_nodes, *self._left_nodes})
        standby = self._jobs.start(slow.rank, "which moves", avoided)
        if standby:
            self._tries[slow.rank] = self._tries.get(slow.rank, 0) + 1
            self._moving = slow, standby

    def _follow(self, slow: SlowRank, standby: Standby) -> list[GangNews]:
        """Look whether a process that was started is in the ring, or never will be."""
        if self._jobs.has_joined(standby):
            target = self._jobs.host(standby)  # Looked for again, if the store fails.
            self._moving = None
            self._left_nodes.add(slow.node)
            return [MovedRank(rank=slow.rank, host=slow.host, target=target)]
        if standby.rows.done():
            self._moving = None
            return self._stays(slow, standby.reason)
        if self._jobs.is_late(standby):
            self._jobs.cancel(standby)
            self._moving = None
            return self._stays(slow, NO_SLOT)
        return []

    def _stays(self, slow: SlowRank, reason: str) -> list[GangNews]:
        """Return the news that a rank stays, once for each reason."""
        if (slow.rank, reason) in self._told:
            return []
        self._told.add((slow.rank, reason))
        return [MovedRank(rank=slow.rank, host=slow.host, reason=reason)]
