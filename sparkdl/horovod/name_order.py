"""Runs in the training process. One order of collectives that ranks start in different orders.

As in Horovod, a thread of each rank tells the others the names of the collectives that wait, and
those that wait on all ranks are called in the order of the first rank. It has a ring of its own,
but in an elastic gang, which has one ring.
"""

import functools
import hashlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.groups import Group, second_ring
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.step_times import step_times
from sparkdl.distribute.world import invitation, ring
from sparkdl.horovod.agreement import contribute, together
from sparkdl.horovod.merging import Mergeable, call_merged, merged_names
from sparkdl.horovod.process_sets import ProcessSet, group_of

__all__ = ["NameOrder", "order_of"]

# Seconds until the ranks compare again what waits, if nothing waits on all of them.
PAUSE_S = 0.001

_Call = Callable[[Ring], Any]

_logger = logging.getLogger("sparkdl.horovod")


class NameOrder:
    """The collectives that wait, and the thread that calls them.

    Args:
        ring: a ring that only the thread uses, and closes; or the ring of an elastic gang.
        ranks: its ranks in the gang.
        timeout_s: seconds after which a collective that waits causes a warning.

    Attributes:
        ring: see above.
    """

    def __init__(self, ring: Ring, ranks: Sequence[int], timeout_s: float) -> None:
        self.ring = ring
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._futures: dict[str, Future[Any]] = {}
        self._calls: dict[str, tuple[_Call, Mergeable | None]] = {}
        self._warn_at: dict[str, float] = {}
        self._numbers = 0, 0
        self._join_future: Future[int] | None = None
        self._last_active: int | None = None
        self._broken: Exception | None = None
        threading.Thread(target=self._run, name="sparkdl collectives", daemon=True).start()

    def submit(
        self, call: _Call, name: str | None = None, mergeable: Mergeable | None = None
    ) -> "Future[Any]":
        """Let a collective wait for its turn, and return its future result.

        Args:
            call: takes a ring; returns the result of the collective.
            name: name by which the ranks find each other; by default a number.
            mergeable: the same collective, if it can be called together with others.

        Raises:
            ValueError: if a collective of this name waits already.
        """
        with self._changed:
            name = self._next_number() if name is None else name
            if name in self._futures:
                raise ValueError(
                    f"the collective {name} was called while another one of this name was waiting; "
                    "expected one at a time: the ranks could not tell the calls apart. Give each "
                    "collective a name of its own, and call it in one thread."
                )
            future: Future[Any] = Future()
            if self._broken:
                future.set_exception(self._broken)
                return future
            self._futures[name] = future
            self._calls[name] = call, mergeable
            self._warn_at[name] = time.monotonic() + self._timeout_s
            self._changed.notify_all()
        return future

    def call(self, call: _Call, name: str | None = None) -> Any:
        """Wait until it is the turn of a collective; return its result, or raise its error.

        Args:
            call, name: see `submit`.
        """
        return self.submit(call, name).result()

    def join(self) -> int:
        """Contribute zeros to the reductions of the other ranks, until all ranks have joined.

        Returns:
            The last rank that joined.
        """
        self.wait_until_idle()
        with self._changed:
            if self._broken:
                raise self._broken
            future: Future[int] = Future()
            self._join_future = future
            self._changed.notify_all()
        return future.result()

    def wait_until_idle(self) -> None:
        """Wait until no collective of this rank waits."""
        with self._changed:
            self._changed.wait_for(lambda: not self._futures)

    def restart(self) -> None:
        """Fail what waits, and number the collectives from the beginning, as a new rank does.

        For an elastic gang, after its ring has broken or before it admits ranks.
        """
        with self._changed:
            self._fail([*self._calls], self.ring.broken or RuntimeError("the ranks change"))
        self.wait_until_idle()
        with self._changed:
            self._numbers = (0, 0)
            self._last_active = None

    def close(self) -> None:
        """End the thread; collectives that wait fail."""
        with self._changed:
            self._broken = self._broken or RuntimeError(
                f"the collectives of the ranks {self._ranks} have ended: hvd.remove_process_set or "
                "hvd.shutdown was called. Call it after the last collective."
            )
            self._fail([*self._futures], self._broken)
        if not isinstance(self.ring, ElasticRing):  # The thread may wait for another rank.
            self.ring.close()

    def _next_number(self) -> str:
        # Joined ranks have called fewer collectives than others, and start again after `join`.
        num_joins, number = self._numbers
        self._numbers = num_joins, number + 1
        return f"noname.{num_joins}.{number}"

    def _run(self) -> None:
        step_times().leave_out_thread()
        is_elastic = isinstance(self.ring, ElasticRing)
        try:
            while self._call_ready():
                pass
        except Exception as exc:  # noqa: BLE001 The callers raise it.
            with self._changed:
                self._broken = self._broken or exc
                self._fail([*self._futures], self._broken)
        finally:
            if not is_elastic:
                self.ring.close()

    def _fail(self, names: Sequence[str], error: Exception) -> None:
        for name in names:
            self._calls.pop(name, None)
            self._warn_at.pop(name, None)
            self._futures.pop(name).set_exception(error)
        if self._join_future:
            self._join_future.set_exception(error)
            self._join_future = None
        self._changed.notify_all()

    def _call_ready(self) -> bool:
        """Call the collectives that wait on all ranks; return False after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._join_future or self._broken)
            if self._broken:
                return False
            names = list(self._calls)
            has_joined = self._join_future is not None
            mergeable = {name: each for name, (_, each) in self._calls.items() if each}
        digests = {name: each.digest for name, each in mergeable.items()}
        try:
            with together(self.ring):
                reports = _reports_of_all(self.ring, [names, has_joined, digests])
                ready = self._call_those_of_all(reports)
        except Exception as exc:
            if not isinstance(self.ring, ElasticRing):
                raise
            with self._changed:
                self._fail([*self._futures], exc)
            return True
        late = [name for name in names if name not in ready]
        self._warn(late, [each for each, _, _ in reports])
        if not ready:
            time.sleep(PAUSE_S)
        return True

    def _call_those_of_all(self, reports: Sequence[Any]) -> list[str]:
        """Call what waits on all ranks that have not joined; return the names.

        Args:
            reports: of each rank the names of what waits, True if it has joined, and the digests of
                what can be merged.
        """
        active = [names for names, has_joined, _ in reports if not has_joined]
        if not active:
            return self._end_join()
        self._last_active = max(rank for rank, (_, joined, _) in enumerate(reports) if not joined)
        ready = [name for name in active[0] if all(name in names for names in active)]
        if len(active) < len(reports):
            for name in ready:
                if reports[self.ring.rank][1]:
                    contribute(self.ring)
                else:
                    self._call([name])
            return ready
        with self._changed:
            mergeables = {name: self._calls[name][1] for name in ready}
        for group in merged_names(ready, mergeables, [digests for _, _, digests in reports]):
            self._call(group)
        return ready

    def _end_join(self) -> list[str]:
        with self._changed:
            future, self._join_future = self._join_future, None
            self._numbers = self._numbers[0] + 1, 0
        last, self._last_active = self._last_active, None
        if future:
            future.set_result(self.ring.size - 1 if last is None else last)
        return []

    def _call(self, names: Sequence[str]) -> None:
        """Call a collective, or several that can be merged."""
        with self._changed:
            calls = [self._calls.pop(name) for name in names]
            for name in names:
                self._warn_at.pop(name)
        ends: list[Callable[[], Any]] = []
        try:
            if len(calls) == 1:
                ends = [functools.partial(calls[0][0], self.ring)]
            else:
                ends = call_merged(self.ring, [each for _, each in calls if each])
        except Exception as exc:  # noqa: BLE001 The callers raise it.
            ends = [functools.partial(_raise, exc)] * len(names)
        for name, end in zip(names, ends, strict=True):
            self._end(name, end)
        del ends, end  # They may have an error, whose traceback has this frame.

    def _end(self, name: str, end: Callable[[], Any]) -> None:
        """End a collective with the result of a function, or its error."""
        result, error = None, None
        try:
            result = end()
        except Exception as exc:  # noqa: BLE001 The caller raises it.
            error = exc
        with self._changed:
            future = self._futures.pop(name, None)
            self._changed.notify_all()
        if future and error:
            future.set_exception(error)
        elif future:
            future.set_result(result)
        del future, error  # The traceback of the error has this frame.

    def _warn(self, names: Sequence[str], names_of_ranks: Sequence[Sequence[str]]) -> None:
        """Warn about collectives that have not begun for long because other ranks lack them."""
        now = time.monotonic()
        with self._changed:  # Another thread may make them fail.
            late = [name for name in names if now >= self._warn_at.get(name, now + 1)]
            self._warn_at.update(dict.fromkeys(late, now + self._timeout_s))
        for name in late:
            by_rank = list(zip(self._ranks, names_of_ranks, strict=False))
            lacking = [rank for rank, names_there in by_rank if name not in names_there]
            _logger.warning(
                "still waiting after %g s: the ranks %s have not called the collective %s, which "
                "waits on this rank; they wait in %s. Ranks find each other by these names: call "
                "the same collectives on all ranks, or pass name=.",
                self._timeout_s,
                lacking,
                name,
                [each for rank, each in by_rank if rank in lacking],
            )


def _raise(error: Exception) -> None:
    raise error


def _reports_of_all(world: Ring, report: Any) -> list[Any]:
    """Return what all ranks tell; a short record is enough if they tell the same."""
    record = hashlib.blake2b(json.dumps(report).encode(), digest_size=16).digest()
    records = world.allgather_record(record)
    if set(records) == {record}:
        return [report] * len(records)
    return world.allgather_object(report)


def order_of(process_set: ProcessSet) -> NameOrder:
    """Return the order of a set; all ranks of the set must call it for the first time together.

    Raises:
        ValueError: if the set was not added, or this rank is not in it.
    """
    orders, group = _orders(os.getpid()), group_of(process_set)
    if group not in orders:
        mine = invitation()
        world = ring()
        own_ring = world if isinstance(world, ElasticRing) else second_ring(group)
        orders[group] = NameOrder(own_ring, group.ranks, mine.timeout_s if mine else 60)
        group.call_at_close(orders[group].close)
    return orders[group]


# Process-wide state: one order for each group of ranks, see `world._ring_of`.
@functools.lru_cache(maxsize=1)
def _orders(pid: int) -> weakref.WeakKeyDictionary[Group, NameOrder]:
    return weakref.WeakKeyDictionary()
