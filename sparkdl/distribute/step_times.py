"""Runs in the training process. Measure how much of each step is this rank's own work.

All ranks leave a collective at about the same time. A rank that begins the next one late has
worked for longer than the others, and they wait for it; a rank that waits has worked for less. So
each rank adds up the time that it spends outside of collectives, and the driver compares the sums
of the same steps, see `cluster.gang.slow_ranks`.
"""

import contextlib
import functools
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from math import isfinite
from typing import NamedTuple, TypeVar

from sparkdl.context import Context
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.polling import Outages, shared_s
from sparkdl.files.rank_files import RankFiles
from sparkdl.host.os_processes import this_node

# The message of a rank with its sums.
TIMES = "times"
# The sums are kept about this often, and this many of them: those of two ranks overlap although
# the ranks post them at different times.
KEPT_S = 0.5
MAX_KEPT = 128
# Seconds between two messages; more for many ranks in a store.
POST_S = 5.0
# The longest name of a host, see gethostname(2) and RFC 1035.
MAX_HOST = 255

_Item = TypeVar("_Item")


class Sums(NamedTuple):
    """The seconds of a rank until the beginning of a step, added up over all steps before.

    Attributes:
        step: the number of the step, the same on all ranks.
        first_s: between the last collective of a step and the first one of the next step.
        own_s: outside of all collectives.
        total_s: all seconds.
        rows_s: a loop over batches of NumPy, PyTorch or JAX waited for the next batch.
        reading_s: a reader made rows that TensorFlow takes later.
    """

    step: int
    first_s: float
    own_s: float
    total_s: float
    rows_s: float = 0.0
    reading_s: float = 0.0

    def since(self, earlier: "Sums") -> "Sums":
        """Return the seconds between two steps."""
        return Sums(*(mine - before for mine, before in zip(self, earlier, strict=True)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class RankTimes:
    """The newest sums of a rank, as it posts them.

    Attributes:
        host: the name of its host.
        node: the name that only ranks on the same host share, see `this_node`.
        generation: the number of the ring, as steps are counted anew in each.
        sums: the sums, the oldest first.
    """

    host: str
    node: str
    generation: int
    sums: tuple[Sums, ...]

    def to_json(self) -> str:
        """Return the text that `parse` reads."""
        sums = [[round(value, 6) for value in each] for each in self.sums]
        return json.dumps({**vars(self), "sums": sums})

    @classmethod
    def parse(cls, text: bytes) -> "RankTimes":
        """Return the sums of a rank.

        Raises:
            ValueError, TypeError, KeyError, OverflowError: if the text has none.
        """
        fields = json.loads(text)
        sums = tuple(Sums(int(step), *map(float, seconds)) for step, *seconds in fields["sums"])
        for before, after in pairwise(sums):
            span = after.since(before)
            if span.step <= 0 or span.total_s <= 0 or min(span) < 0:
                raise ValueError("the sums of a rank do not grow")
        if not all(map(isfinite, chain.from_iterable(sums))):
            raise ValueError("the sums of a rank are no numbers")
        host, node = shown_host(str(fields["host"])), str(fields["node"])
        return cls(host, node, int(fields["generation"]), sums)


class StepTimes:
    """Adds up the seconds of this process.

    A step begins where `begin_step` is called. In a program that never calls it, each collective
    of all ranks is a step.

    Args:
        clock: returns seconds.

    Example:
        >>> times = StepTimes(iter([0.0, 3.0, 3.5, 7.5]).__next__)
        >>> times.enter(is_world=True)  # after three seconds of own work
        >>> times.leave()
        >>> times.enter(is_world=True)  # after four more
        >>> [(sums.step, sums.own_s, sums.total_s) for sums in times.message().sums]
        [(1, 3.0, 3.0), (2, 7.0, 7.5)]
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._depth = 0
        self._others = threading.local()
        self._is_marked = False
        self._has_voted = False
        self._generation = 0
        self._restart(clock())

    def restart(self, generation: int) -> None:
        """Count from the beginning, in a new ring.

        Args:
            generation: the number of the ring.
        """
        with self._lock:
            self._generation = generation
            self._restart(self._clock())

    def _restart(self, now: float) -> None:
        self._begun = self._left = now
        self._step, self._stride = 0, 1
        self._first_s = self._own_s = self._rows_s = self._reading_s = 0.0
        self._kept: deque[Sums] = deque(maxlen=MAX_KEPT)

    def message(self, host: str = "", node: str = "") -> "RankTimes":
        """Return the sums that are kept.

        Args:
            host, node: see `RankTimes`.
        """
        with self._lock:
            return RankTimes(host, node, self._generation, tuple(self._kept))

    def enter(self, is_world: bool = False) -> None:
        """Note that this rank begins to wait for others, for example in a collective.

        Args:
            is_world: it is a collective of all ranks.
        """
        if getattr(self._others, "is_apart", False):
            return
        with self._lock:
            if not self._depth:
                now = self._clock()
                if is_world and not self._is_marked:
                    self._begin_step(now)
                self._own_s += now - self._left
                self._left = now
            self._depth += 1

    def leave(self) -> None:
        """Note that the waiting that `enter` began is over."""
        if getattr(self._others, "is_apart", False):
            return
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._left = self._clock()

    def leave_out_thread(self) -> None:
        """Ignore the collectives of this thread: another one computes meanwhile, and then waits."""
        self._others.is_apart = True

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as waiting for other ranks."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def begin_step(self) -> None:
        """Note that a step begins: this rank has the gradients that are reduced first."""
        with self._lock:
            now = self._clock()
            if not self._is_marked:
                self._is_marked = True
                self._restart(now)
            self._begin_step(now)

    def vote(self) -> None:
        """Note that a step begins with a vote, which its first reduction follows."""
        self._has_voted = True
        self.begin_step()

    def reduce(self) -> None:
        """Note the first reduction of a step, which a vote may have preceded."""
        if self._has_voted:
            self._has_voted = False
        else:
            self.begin_step()

    def begin_epoch(self) -> None:
        """Leave out the time since the last collective, such as that of saving on one rank."""
        with self._lock:
            if not self._depth:
                self._left = self._clock()

    def take(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Yield the batches of a loop, and count the time for which the loop waits for them."""
        return self._timed(items, "_rows_s")

    def read(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Yield rows that TensorFlow takes later, and count the time for which they are made."""
        return self._timed(items, "_reading_s")

    def _timed(self, items: Iterator[_Item], name: str) -> Iterator[_Item]:
        items = iter(items)
        try:
            while True:
                begun = self._clock()
                try:
                    item = next(items)
                except StopIteration:
                    return
                finally:
                    elapsed_s = self._clock() - begun
                    with self._lock:
                        setattr(self, name, getattr(self, name) + elapsed_s)
                yield item
        finally:
            if close := getattr(items, "close", None):
                close()

    def _begin_step(self, now: float) -> None:
        gap_s = 0.0 if self._depth else now - self._left
        self._first_s += gap_s
        self._step += 1
        if self._step % self._stride:
            return
        sums = Sums(
            self._step,
            self._first_s,
            self._own_s + gap_s,
            now - self._begun,
            self._rows_s,
            self._reading_s,
        )
        if self._kept:
            # A power of two: whatever the ranks choose, the steps of one are among those of others.
            span = sums.since(self._kept[-1])
            kept_s = self._stride * span.total_s / span.step
            if 2 * kept_s <= KEPT_S:  # Not more at once, as steps may differ in length.
                self._stride *= 2
            while self._stride > 1 and kept_s > KEPT_S:
                self._stride, kept_s = self._stride // 2, kept_s / 2
        self._kept.append(sums)


def step_times() -> StepTimes:
    """Return the times of this process."""
    return _of_process(os.getpid())


def post_step_times(me: Context) -> None:
    """Post the sums of this process to the folder of its attempt, from now on, in a thread.

    Args:
        me: the context of this process.
    """
    if me.url is None or me.world_size < 2:
        return
    files = RankFiles(TrialPaths(me.url).ranks(me.attempt))
    arguments = (files, me.rank, me.world_size)
    threading.Thread(target=_post, args=arguments, name="step-times", daemon=True).start()


def shown_host(name: str) -> str:
    """Return the name of a host for the user, from a file that others may have written."""
    return "".join(filter(str.isprintable, name))[:MAX_HOST]


def _post(files: RankFiles, rank: int, size: int) -> None:
    host, node = socket.gethostname(), this_node()
    outages = Outages("post the times of a rank")
    posted: RankTimes | None = None
    while True:
        time.sleep(POST_S if storage.is_local(files.url) else shared_s(POST_S, size))
        message = step_times().message(host, node)
        if message.sums and message != posted:
            with outages.tolerated():
                files.post(rank, TIMES, message.to_json())
                posted = message


# Process-wide state: one clock of the steps per process. The process id is an argument so that a
# forked process does not count the steps of its parent.
@functools.lru_cache(maxsize=1)
def _of_process(pid: int) -> StepTimes:
    return StepTimes()
