"""Runs in the training process. The calls of a ring: numbered, checked, and on which connections.

Arrays travel around the ring; or in rounds, if they are short and the ranks many, or if several
hosts have several ranks each, see `strides`.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.call_header import (
    HEADER,
    check_call,
    check_header,
    check_vote,
    pack_header,
)
from sparkdl.distribute.links import Links
from sparkdl.distribute.step_times import step_times
from sparkdl.distribute.stride_plan import SHORT_BYTES, longest_in_rounds, plan_strides
from sparkdl.distribute.strides import GATHERED_BYTES, Strides
from sparkdl.distribute.votes import Ballot

# The first collectives go around the ring: a short run does without further connections.
NUM_CALLS_BEFORE_STRIDES = 16


class RingCalls:
    """This rank's membership in a ring of ranks that train together.

    All ranks call the same methods in the same order. Threads of a rank take turns, and their
    turns must have the same order on all ranks.

    Args:
        ranks: all ranks, in ring order.
        rank: this rank.
        links: connections to the neighbours; None in a ring of one rank.
        nodes: host names, by rank.
        open_strides: returns the connections for collectives in rounds, see
            `stride_links.open_strides`; called at the first collective that needs them.
        open_pairs: returns the connections of `swap`, see `stride_links.open_pairs`.

    Attributes:
        rank: this rank.
        size: number of ranks.
        nodes: host names, by rank.
        is_alone: True if no other rank is present, and none can join.
        broken: the exception that has broken the ring; None in a working ring.
        is_world: True if it is the ring of all ranks of the gang.
    """

    def __init__(
        self,
        ranks: Sequence[int] = (0,),
        rank: int = 0,
        links: Links | None = None,
        nodes: Sequence[str] = ("",),
        open_strides: Callable[[Any, Links], Strides | None] | None = None,
        open_pairs: Callable[[Any, Links], list[Links] | None] | None = None,
    ) -> None:
        self.rank = rank
        self.size = len(ranks)
        self.nodes = list(nodes)
        self.is_alone = self.size == 1
        self.broken: Exception | None = None
        self.is_world = False
        self._ranks = list(ranks)
        self._position = self._ranks.index(rank)
        self._links = links
        self._longest_in_rounds = longest_in_rounds(nodes)
        self._part_numbers = self._numbers_of_parts()
        self._open_strides = open_strides if self._longest_in_rounds else None
        self._strides: Strides | None = None
        self._open_pairs = open_pairs
        self._pairs: list[Links] = []
        self._num_calls = 0
        self._header = b""  # Of the last call.
        self._lock = threading.RLock()  # Held by a call through all its trips around the ring.

    def close(self) -> None:
        """Leave the ring; the neighbours notice at once."""
        for links in self._all_links():
            links.close()

    def change_links(self, change: Callable[[Links], Links]) -> None:
        """Replace the links, between two collectives.

        Args:
            change: returns new links for those of this ring, over the same connections.
        """
        with self._lock:
            if self._links:
                self._links = change(self._links)
            if self._strides:
                self._strides.links = [change(links) for links in self._strides.links]
            self._pairs = [change(links) for links in self._pairs]

    def _numbers_of_parts(self) -> list[int]:
        """Return the number of the part of an array that a rank completes, by position.

        Each rank completes the same part around the ring and in rounds.
        """
        if not self._longest_in_rounds:
            return [(position + 1) % self.size for position in range(self.size)]
        order = plan_strides([self.nodes[rank] for rank in self._ranks]).order
        return [order.index(position) for position in range(self.size)]

    def _all_links(self) -> list[Links]:
        return [
            *([self._links] if self._links else []),
            *(self._strides.links if self._strides else []),
            *self._pairs,
        ]

    @property
    def _short_bytes(self) -> int:
        """The number of bytes of the longest array that is gathered as a whole.

        It does not depend on whether strides are open yet: a training that is continued has the
        same bits as one that was not interrupted.
        """
        if self._strides or self._open_strides:
            return min(SHORT_BYTES, GATHERED_BYTES // self.size)
        return SHORT_BYTES

    def _opened_strides(self, call: str, detail: int, array: Any, is_urgent: bool) -> Any:
        """Return the strides of this ring; None if there are none, or none yet.

        Args:
            call, detail, array: see `pack_header`.
            is_urgent: open strides for this call.
        """
        opener, links = self._open_strides, self._links
        if opener and links and (is_urgent or self._num_calls >= NUM_CALLS_BEFORE_STRIDES):
            self._open_strides = None  # Opening is a collective too.
            self._exchange(call, detail, array, [], [], 0)
            self._strides = opener(self, links)
            self._watch([links, *(self._strides.links if self._strides else [])])
        return self._strides

    def _opened_pairs(self, array: Any) -> list[Links]:
        """Return the links to the ranks whose numbers differ in a bit, by the bit; none if closed.

        Args:
            array: the array of the call, see `pack_header`.
        """
        opener, links = self._open_pairs, self._links
        if opener and links:
            self._open_pairs = None  # Opening is a collective too.
            self._exchange("swap", 0, array, [], [], 0)
            self._pairs = opener(self, links) or []
            self._watch([links, *self._pairs])
        return self._pairs

    def _watch(self, watched: Sequence[Links]) -> None:
        """Look for calls of other collectives on all connections while one of these is awaited."""
        for links in watched:
            links.watch(self._check_calls)

    def _strides_for(self, call: str, detail: int, array: Any) -> Any:
        """Return the strides on which an array travels; None if it travels around the ring.

        Args:
            call, detail, array: see `pack_header`.
        """
        if self.size == 1 or array.nbytes > self._longest_in_rounds:
            return None
        return self._opened_strides(call, detail, array, is_urgent=True)

    def _check_calls(self) -> None:
        """Validate that no rank that sends something to this one calls another collective.

        Ranks whose collectives differ may wait for each other on different connections.

        Raises:
            RuntimeError: if another rank calls another collective.
        """
        for links in self._all_links():
            if len(other := links.peek(HEADER.size)) == HEADER.size:
                check_call(self._header, other)

    def _vote(
        self, vote: int, detail: int, values: Any, data: bytes
    ) -> tuple[list[int], list[Any]]:
        """Return the votes of all ranks, and the bytes of their arrays, both in ring order."""
        nothing = np.empty(0, np.uint8)
        strides = self._opened_strides("vote", 0, nothing, is_urgent=False)
        header = pack_header(self._num_calls, "vote", detail, values)
        if strides is None:
            ballot = Ballot(header, vote, data, self.size, self._short_bytes)
            with self._called(header):
                self._through(ballot.sends, ballot.receives, 1, ballot.arrived)
            return self._in_ring_order(ballot.votes), self._in_ring_order(ballot.arrays)

        def check(record: bytes) -> int:
            num_bytes = check_vote(header, record[:-1], is_same=record[-1] == vote)
            return num_bytes if num_bytes <= self._short_bytes else 0

        with self._called(header):
            records, arrays = strides.gather(header + bytes([vote]), data, check)
        return [record[-1] for record in records], arrays

    def _gather_short(self, call: str, detail: int, array: Any) -> list[Any]:
        """Return the bytes of the arrays of all ranks, in ring order, with the lock held.

        The next call may use their memory again.

        Args:
            call, detail, array: see `pack_header`.
        """
        with self._lock:
            strides = self._opened_strides(call, detail, array, is_urgent=False)
            header = pack_header(self._num_calls, call, detail, array)
            record = header + array.tobytes()

            def arrived(number: int, message: Any) -> None:
                check_header(header, message[: len(header)])

            def check(message: Any) -> int:
                arrived(0, message)
                return 0

            with self._called(header):
                if strides:
                    messages, _ = strides.gather(record, b"", check)
                else:
                    passed = [bytearray(record), *(bytearray(len(record)) for _ in self._ranks[1:])]
                    self._through(passed[:-1], passed[1:], 1, arrived)
                    messages = self._in_ring_order(passed)
        return [memoryview(message)[len(header) :] for message in messages]

    def _in_ring_order(self, messages: Sequence[Any]) -> list[Any]:
        # The message of step s comes from the rank s positions before this one.
        return [messages[(self._position - position) % self.size] for position in range(self.size)]

    def _exchange(
        self,
        call: str,
        detail: int,
        array: Any,
        sends: Sequence[Any],
        receives: Sequence[Any],
        num_ready: int,
        arrived: Callable[[int, Any], None] = lambda number, block: None,
    ) -> None:
        """Exchange blocks behind headers, by which ranks notice that their calls differ.

        Args:
            call: one of CALLS.
            detail: index in OPERATIONS, or root.
            array: array whose dtype and shape the header describes.
            sends, receives, num_ready, arrived: see `Links.exchange`.
        """
        with self._lock:  # The calls of all threads are numbered in the order of their turns.
            own_header = pack_header(self._num_calls, call, detail, array)
            received_header = bytearray(len(own_header))

            def arrived_behind_header(number: int, block: Any) -> None:
                if number:
                    arrived(number - 1, block)
                else:
                    check_header(own_header, received_header)

            with self._called(own_header):
                self._through(
                    [own_header, *sends],
                    [received_header, *receives],
                    1 + num_ready,
                    arrived_behind_header,
                    lag=1,
                )

    @contextlib.contextmanager
    def _called(self, header: bytes) -> Iterator[None]:
        """Run a collective with the lock held; after a failure all further collectives fail.

        Args:
            header: the header of the call.
        """
        if self.broken:
            raise self.broken
        self._header = header
        times = step_times()
        times.enter(self.is_world)
        try:
            yield
        except BaseException as exc:
            if isinstance(exc, Exception):
                self.broken = exc
            self.close()  # The ranks that wait for this one on other connections notice too.
            raise
        finally:
            times.leave()
        self._num_calls += 1

    def _through(
        self,
        sends: Sequence[Any],
        receives: Sequence[Any],
        num_ready: int,
        arrived: Callable[[int, Any], None],
        lag: int = 0,
    ) -> None:
        """Call `Links.exchange`."""
        if self._links is not None:
            self._links.exchange(sends, receives, num_ready, arrived, lag)
