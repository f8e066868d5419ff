"""Runs on the driver. How many trials run at once, and how many wait inside Spark."""

import time
from collections.abc import Callable

from sparkdl.cluster.slots import Slots

__all__ = ["Pace"]

COUNT_S = 2.0


class Pace:
    """Decides how many trials Spark is given.

    Args:
        count_slots: asks Spark how many fit at once.
        parallelism: the person's limit, or None.
        enforced: Spark itself runs no more at once than it has slots.
        size: the processes of one trial, each in a slot of its own.
        ahead: let Spark have trials before there is a slot for them; else each is made from all
            that is known when its slot is free.
    """

    def __init__(
        self,
        count_slots: Callable[[], Slots],
        parallelism: int | None,
        enforced: bool,
        size: int = 1,
        ahead: bool = True,
    ) -> None:
        self._count, self._parallelism, self._enforced = count_slots, parallelism, enforced
        self._size, self._ahead = size, ahead
        self._counted_s = time.monotonic()
        self._short_since: float | None = None
        self.slots = count_slots()

    def recount(self) -> None:
        """Slots come and go: ask again, if the last answer is some seconds old."""
        if time.monotonic() - self._counted_s > COUNT_S:
            self._counted_s = time.monotonic()
            self.slots = self._count()

    @property
    def limit(self) -> int:
        """How many trials may run at once, at least one."""
        fit = self.slots.count // self._size
        return max(1, min(fit, self._parallelism or fit))

    def short_s(self) -> float:
        """For how many seconds Spark lacks the slots for even one trial; a lost executor may come
        back."""
        if self.slots.count >= self._size:
            self._short_since = None
            return 0.0
        now = time.monotonic()
        self._short_since = self._short_since or now
        return max(now - self._short_since, 1e-3)

    def too_few(self, for_s: float) -> str:
        """What is missing where not even one trial fits."""
        have = f"{self.slots.count} ({self.slots.reason})"
        return f"{self._size} slots are needed, and for {for_s:g} s there are {have}."

    def submitted(self, started: int) -> int:
        """How many trials Spark may have: those that run, and some ready for the next free slot.

        None waits inside Spark before the first ones have started, which keeps their order, nor
        where something else than Spark's slots limits how many may run at once.
        """
        # Of two gangs inside Spark one might hold slots that the other lacks.
        limited = self.limit < self.slots.count or not self._enforced or self._size > 1
        ready = 0 if limited or not self._ahead or started < self.limit else max(1, self.limit // 4)
        return self.limit + ready

    def cores(self, trials: int) -> int:
        """The CPU cores for one process of so many trials that want to run now."""
        return max(1, self.slots.cores // max(1, min(self.limit, trials) * self._size))
