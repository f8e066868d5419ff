"""Runs on the driver. Let an elastic gang grow into idle slots, and give them back to other work.

The job of the gang has the smallest number of ranks. Each further rank is a Spark job of one task,
see `StandbyJobs`, so that its slot is free as soon as the rank has left.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.cluster.gang.slow_ranks import GangNews, SlowRank
from sparkdl.cluster.gang.standby_jobs import NO_SLOT, Standby, StandbyJobs, rank_of
from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.cluster.spark_errors import JobFailed
from sparkdl.runs.events import GangResized

# Seconds between two looks at the slots.
LOOK_S = 2.0
# The gang grows into slots that were idle for this long: between two trials of a search, a slot is
# idle for a moment.
IDLE_S = 10.0
# It gives slots back when other work has waited for this long: Spark needs a moment to start tasks.
# Where Spark adds executors for work that waits, they get longer to come.
WAITING_S = 4.0
ON_DEMAND_WAITING_S = 60.0
# Idle slots that no work has taken in this time, while work waits, do not suit it: it may want more
# CPUs or GPUs. Before, Spark may wait for a slot on the host that has the rows, see
# `spark.locality.wait`.
UNSUITED_S = 15.0
# Seconds without growth after slots were given back, or were not there. Each round in a row in
# which processes do not come doubles them, up to MAX_PAUSE_S.
PAUSE_S = 30.0
MAX_PAUSE_S = 600.0
# After this many rounds in a row in which processes have failed, there is no growth.
MAX_FAILURES = 3

IDLE = "slots were idle"
WAITING = "other work waits for slots"
BACK = "a lost worker is back"
GIVEN_UP = f"new workers failed {MAX_FAILURES} times in a row, and no more are started"


@dataclass(frozen=True, kw_only=True)
class ResizedGang(GangNews):
    """The ring has another number of ranks than before, or cannot grow.

    Attributes:
        before, after: the numbers of ranks; equal if the gang cannot grow.
        reason: the reason.
    """

    before: int
    after: int
    reason: str

    def event(self, number: int, names: Sequence[str]) -> GangResized:
        """Return the event of the journal."""
        return GangResized(number=number, before=self.before, after=self.after, reason=self.reason)


class RankGrower:
    """Adds ranks to a gang, and lets them go.

    Args:
        jobs: starts the further ranks.
        ranks: the further ranks, which come after those of the gang's own job.
        num_spare: returns the number of slots that no task uses.
        num_waiting: returns the number of tasks of other work of the application that wait.
        on_demand: Spark adds executors while tasks wait.
    """

    def __init__(
        self,
        jobs: StandbyJobs,
        ranks: range,
        num_spare: Callable[[], int],
        num_waiting: Callable[[], int],
        on_demand: bool = False,
    ) -> None:
        self._jobs = jobs
        self._ranks = ranks
        self._num_spare, self._num_waiting = num_spare, num_waiting
        self._on_demand = on_demand
        self._standbys: dict[int, Standby] = {}
        self._cancelled: set[int] = set()
        self._leaving: set[int] = set()
        self._members: set[int] = set()
        self._idle: deque[tuple[float, int]] = deque()
        self._short_since: float | None = None
        self._waiting_since: float | None = None
        self._next_s = 0.0
        # The processes that are started at the same time are a round.
        self._round = 0
        self._absent_rounds: set[int] = set()
        self._failed_rounds: set[int] = set()
        self._told: set[str] = set()
        self._looked_s = 0.0

    def look(self, slow: Collection[SlowRank]) -> list[GangNews]:
        """Add ranks, or let ranks go, if it is time for that; return the news.

        Args:
            slow: the ranks that are slow now, which go first.
        """
        now = time.monotonic()
        members = set(self._jobs.membership.members)
        if now - self._looked_s < LOOK_S or not members or self._jobs.is_over:
            return []
        self._looked_s = now
        news = [*self._resized(members), *self._take_ends(now)]
        spare, waiting = self._num_spare(), self._num_waiting()
        self._give_back(self._num_short(spare, waiting, now), {each.rank for each in slow}, now)
        self._grow(self._num_idle(spare, waiting, now), now)
        return news

    def rows(self, rows: Sequence[Any]) -> list[Any]:
        """Return the rows of the tasks of a gang that has ended, those of further ranks included.

        Args:
            rows: the rows of the job of the gang.
        """
        found = list(rows)
        members = self._jobs.membership.members
        for standby in self._jobs.end():
            if standby.rank not in members:  # It may wait for a slot, since its executor was lost.
                self._jobs.cancel(standby)
            try:
                further = standby.rows.result()
            except JobFailed:  # The others have gone on without it.
                continue
            found += [row for row in further if _counts(row)]
        return sorted(found, key=rank_of)

    def _resized(self, members: set[int]) -> list[GangNews]:
        """Return the news that the ring has other ranks than at the last look."""
        before, self._members = self._members, members
        lost = sorted(before - members - self._leaving)
        if not before or before == members:
            return []
        is_new = any(rank in self._ranks for rank in members - before)
        if is_new:
            self._absent_rounds.clear()
            self._failed_rounds.clear()
        reason = WAITING if before - members else IDLE if is_new else BACK
        if lost:
            many = len(lost) > 1
            who = f"worker{'s' if many else ''} {', '.join(map(str, lost))}"
            reason = f"{who} {'were' if many else 'was'} lost"
        return [ResizedGang(before=len(before), after=len(members), reason=reason)]

    def _take_ends(self, now: float) -> list[GangNews]:
        """Forget the further ranks whose jobs have ended; return the news of failures."""
        news: list[GangNews] = []
        for rank, standby in list(self._standbys.items()):
            has_joined = self._jobs.has_joined(standby)
            if standby.rows.done():
                del self._standbys[rank]
                self._leaving.discard(rank)
                if not has_joined and rank not in self._cancelled:
                    self._failed_rounds.add(self._round)
                    self._pause(now)
                    news += self._stays(standby.reason)
                self._cancelled.discard(rank)
            elif not has_joined and rank not in self._cancelled and self._jobs.is_late(standby):
                self._cancel(standby)
                self._pause(now)
                news += self._stays(NO_SLOT)
        return news + (self._stays(GIVEN_UP) if self._has_given_up() else [])

    def _has_given_up(self) -> bool:
        return len(self._failed_rounds) >= MAX_FAILURES

    def _pause(self, now: float) -> None:
        """Wait longer after each round in which processes have not come."""
        num_before = min(len(self._absent_rounds - {self._round}), 16)
        self._absent_rounds.add(self._round)
        self._next_s = now + min(PAUSE_S * 2**num_before, MAX_PAUSE_S)

    def _stays(self, reason: str) -> list[GangNews]:
        """Return the news that the gang cannot grow, once for each reason."""
        if reason in self._told:
            return []
        self._told.add(reason)
        size = len(self._members)
        return [ResizedGang(before=size, after=size, reason=reason)]

    def _num_short(self, spare: int, waiting: int, now: float) -> int:
        """Return the number of slots for which other work has waited long enough."""
        waiting -= len(self._leaving)
        self._waiting_since = (self._waiting_since or now) if waiting > 0 else None
        is_unsuited = self._waiting_since is not None and now - self._waiting_since >= UNSUITED_S
        short = waiting - (0 if self._on_demand or is_unsuited else max(spare, 0))
        self._short_since = (self._short_since or now) if short > 0 else None
        limit_s = ON_DEMAND_WAITING_S if self._on_demand else WAITING_S
        has_waited = self._short_since is not None and now - self._short_since >= limit_s
        return short if has_waited else 0

    def _num_idle(self, spare: int, waiting: int, now: float) -> int:
        """Return the number of slots that were idle for long enough."""
        self._idle.append((now, 0 if waiting else max(spare, 0)))
        while len(self._idle) > 1 and self._idle[1][0] <= now - IDLE_S:
            self._idle.popleft()
        is_known = self._idle[0][0] <= now - IDLE_S
        return min(count for _, count in self._idle) if is_known else 0

    def _give_back(self, count: int, slow: set[int], now: float) -> None:
        """Let ranks go: first those that are not in the ring yet, then slow ones, then the last."""
        members = self._members
        if not count or not any(rank not in self._ranks for rank in members):
            return  # Some rank of the gang's own job must be there, to go on.
        staying = self._standbys.keys() - self._leaving
        order = sorted(staying, key=lambda rank: (rank in members, rank not in slow, -rank))
        for rank in order[:count]:
            standby = self._standbys[rank]
            self._jobs.membership.release(rank, standby.incarnation)
            self._leaving.add(rank)
            if rank not in members:
                self._cancel(standby)
        self._short_since = self._waiting_since = None
        self._next_s = max(self._next_s, now + PAUSE_S)

    def _grow(self, count: int, now: float) -> None:
        """Start ranks, unless others are on their way."""
        are_in = all(rank in self._members for rank in self._standbys)
        if now < self._next_s or not are_in or self._leaving or self._has_given_up():
            return
        absent = [rank for rank in self._ranks if rank not in self._standbys]
        self._round += bool(count)
        for rank in absent[:count]:
            if standby := self._jobs.start(rank, "as slots are idle"):
                self._standbys[rank] = standby
                self._idle.clear()

    def _cancel(self, standby: Standby) -> None:
        self._cancelled.add(standby.rank)
        self._jobs.cancel(standby)


def _counts(row: Any) -> bool:
    """Return False for the row of a task that Spark has started where no rank can run."""
    return Outcome.from_json(row["outcome"]).status is not Status.REFUSED
