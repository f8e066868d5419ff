"""A simulated night on the slots of one Spark application: a training, and searches beside it.

The rules are those of the package: `RankGrower` decides when the training grows and gives slots
back, and `Concurrency` how many trials a search submits ahead. Spark gives a free slot to the task
of the oldest job. A second is the unit of time.
"""

import random
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sparkdl.cluster.gang import rank_grower
from sparkdl.cluster.gang.elastic_seat import LEAVE_S
from sparkdl.cluster.gang.rank_grower import RankGrower
from sparkdl.cluster.gang.standby_jobs import BEGIN_S
from sparkdl.cluster.slots import Slots
from sparkdl.runner.concurrency import Concurrency

__all__ = ["Night", "simulate"]


@dataclass(frozen=True, kw_only=True)
class Night:
    """The work that a cluster gets in one night.

    Attributes:
        slots: number of slots.
        seconds: length of the night.
        training_s: the time at which the training is submitted.
        searches: the time of each search, and the seconds of its trials.
        start_s: seconds in which a rank imports and builds its model.
        epoch_slot_s: work of an epoch of the training, in seconds of one rank.
        meet_s: seconds for which all ranks stand still when ranks come or leave.
    """

    slots: int = 8
    seconds: int = 8 * 3600
    training_s: int = 600
    searches: tuple[tuple[int, tuple[int, ...]], ...] = ()
    start_s: int = 20
    epoch_slot_s: int = 1200
    meet_s: int = 1

    @classmethod
    def of_seed(cls, seed: int) -> "Night":
        """Return a night with four searches of 24 trials, of 3 to 20 minutes each."""
        chance = random.Random(seed)
        begins = [0, *sorted(chance.randrange(3600, 6 * 3600) for _ in range(3))]
        trials = [tuple(chance.randrange(180, 1200) for _ in range(24)) for _ in begins]
        return cls(searches=tuple(zip(begins, trials, strict=True)))


@dataclass(eq=False)
class _Task:
    """A task of a Spark job; `left_s` is the work of a trial, and None for a rank."""

    order: int
    submitted_s: int
    left_s: int | None = None
    started_s: int | None = None
    is_over: bool = False


class _Spark:
    """Slots, which the tasks of the oldest jobs get."""

    def __init__(self, slots: int) -> None:
        self.slots, self.now = slots, 0
        self.tasks: list[_Task] = []
        self._num_jobs = 0

    def submit(self, left_s: int | None = None, count: int = 1) -> list[_Task]:
        self._num_jobs += 1
        new = [_Task(self._num_jobs, self.now, left_s) for _ in range(count)]
        self.tasks += new
        return new

    @property
    def running(self) -> list[_Task]:
        return [task for task in self.tasks if task.started_s is not None and not task.is_over]

    @property
    def waiting(self) -> list[_Task]:
        return [task for task in self.tasks if task.started_s is None and not task.is_over]

    def schedule(self) -> None:
        free = self.slots - len(self.running)
        for task in sorted(self.waiting, key=lambda task: task.order)[:free]:
            task.started_s = self.now


class _Search:
    """A search, which submits as many trials as `TrialLoop` does."""

    def __init__(self, spark: _Spark, trials: Iterable[int]) -> None:
        self._spark = spark
        self._left = list(trials)
        self.tasks: list[_Task] = []
        slots = Slots(spark.slots, spark.slots, "simulated")
        self._concurrency = Concurrency(lambda: slots)

    def tick(self) -> None:
        started = [task for task in self.tasks if task.started_s is not None]
        running = [task for task in started if not task.is_over]
        most = self._concurrency.max_submitted(len(started), len(running))
        while self._left and sum(not task.is_over for task in self.tasks) < most:
            self.tasks += self._spark.submit(self._left.pop(0))
        for task in running:
            task.left_s = (task.left_s or 0) - 1
            task.is_over = task.left_s <= 0


@dataclass(eq=False)
class _Standby:
    rank: int
    task: _Task
    incarnation: int = 0
    rows: "Future[Any]" = field(default_factory=Future)
    asked_to_leave_s: int | None = None

    reason = ""


class _Training:
    """A training whose ranks all train at the same time; it also is what a grower needs to know."""

    is_over = False

    def __init__(self, spark: _Spark, night: Night, least: int, most: int) -> None:
        self._spark, self._night = spark, night
        self._first = spark.submit(count=least)
        self._standbys: list[_Standby] = []
        self._epoch_left: float = night.epoch_slot_s
        self._stands_until = 0
        self.members: dict[int, int] = {}
        self.moved: dict[int, Any] = {}
        self.membership = self
        self.num_changes = 0
        self.grower = None
        if most > least:
            jobs: Any = self
            self.grower = RankGrower(
                jobs,
                range(least, most),
                lambda: spark.slots - len(spark.running),
                lambda: len([task for task in spark.waiting if not self._is_own(task)]),
            )

    def _is_own(self, task: _Task) -> bool:
        return task in self._first or task in [standby.task for standby in self._standbys]

    # ---- what the grower calls

    def start(self, rank: int, why: str) -> _Standby:
        (task,) = self._spark.submit()
        standby = _Standby(rank, task, len(self._standbys) + 1)
        self._standbys.append(standby)
        return standby

    def has_joined(self, standby: _Standby) -> bool:
        return self.moved.get(standby.rank) is standby

    def is_late(self, standby: _Standby) -> bool:
        is_pending = standby.task.started_s is None
        return is_pending and self._spark.now - standby.task.submitted_s > BEGIN_S

    def cancel(self, standby: _Standby) -> None:
        self._end(standby)

    def release(self, rank: int, incarnation: int) -> None:
        standby = self._standbys[incarnation - 1]
        standby.asked_to_leave_s = self._spark.now

    # ---- time

    def tick(self) -> int:
        """Let a second pass; return the number of ranks that trained in it."""
        now = self._spark.now
        if not self.members:
            if not all(self._is_ready(task) for task in self._first):
                return 0
            self.members = dict.fromkeys(range(len(self._first)), 0)
        for standby in self._standbys:
            if standby.asked_to_leave_s is not None and now - standby.asked_to_leave_s > LEAVE_S:
                self._end(standby)
        if self._epoch_left <= 0:
            self._epoch_left += self._night.epoch_slot_s
            self._meet()
        if self.grower:
            self.grower.look(())
        if now < self._stands_until:
            return 0
        self._epoch_left -= len(self.members)
        return len(self.members)

    def _is_ready(self, task: _Task) -> bool:
        started_s = task.started_s
        return started_s is not None and self._spark.now - started_s >= self._night.start_s

    def _meet(self) -> None:
        for standby in self._standbys:
            if standby.task.is_over:
                continue
            if standby.asked_to_leave_s is not None:
                self._end(standby)
            elif standby.rank not in self.members and self._is_ready(standby.task):
                self.members[standby.rank] = standby.incarnation
                self.moved[standby.rank] = standby
                self._change()

    def _end(self, standby: _Standby) -> None:
        if standby.task.is_over:
            return
        standby.task.is_over = True
        standby.rows.set_result([])
        if self.members.get(standby.rank) == standby.incarnation:
            del self.members[standby.rank]
            self._change()

    def _change(self) -> None:
        self.num_changes += 1
        self._stands_until = self._spark.now + self._night.meet_s


def simulate(night: Night, least: int, most: int) -> dict[str, float]:
    """Return how the slots were used in a night.

    Args:
        night: what happens.
        least, most: the bounds of the training; equal for a fixed number of ranks.
    """
    spark = _Spark(night.slots)
    clock = SimpleNamespace(monotonic=lambda: float(spark.now) + 1e6)
    searches: list[_Search] = []
    training: _Training | None = None
    trial_s = rank_s = num_ranks_s = 0
    with mock.patch.object(rank_grower, "time", clock):
        for now in range(night.seconds):
            spark.now = now
            searches += [_Search(spark, trials) for at, trials in night.searches if at == now]
            if now == night.training_s:
                training = _Training(spark, night, least, most)
            for search in searches:
                search.tick()
            ranks = training.tick() if training else 0
            spark.schedule()
            trial_s += len([task for task in spark.running if task.left_s is not None])
            rank_s += ranks
            num_ranks_s += len([task for task in spark.running if task.left_s is None])
    trials = [task for search in searches for task in search.tasks]
    begun = [task for task in trials if task.started_s is not None]
    waits = [
        (t.started_s if t.started_s is not None else night.seconds) - t.submitted_s for t in trials
    ]
    total = night.slots * night.seconds
    return {
        "used": (trial_s + rank_s) / total,
        "by_training": rank_s / total,
        "held_unused": (num_ranks_s - rank_s) / total,
        "trials_begun": len(begun) / sum(len(each) for _, each in night.searches),
        "wait_s": sum(waits) / len(waits),
        "changes": training.num_changes if training else 0,
    }
