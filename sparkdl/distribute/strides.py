"""Runs in the training process. Collectives in about log2 of the number of ranks rounds.

The ranks have places on a circle. In each round, a rank sends to the rank some places after it,
and receives from the rank as many places before it: that number is the stride, and each round has
its own. Gathering goes from the shortest stride to the longest (Bruck and others 1997, "Efficient
algorithms for all-to-all communications in multiport message-passing systems"); reducing goes from
the longest to the shortest, and then back (Traeff 2024, "Optimal, non-pipelined reduce-scatter and
all-reduce algorithms"). Any number of ranks will do. One rank computes the value of each part and
sends it to all others, so that all ranks have the same bits.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from sparkdl.distribute.call_header import HEADER, check_call, check_header
from sparkdl.distribute.links import Links
from sparkdl.distribute.operands import block_slices, bytes_of
from sparkdl.distribute.reductions import accumulate_values, finish
from sparkdl.distribute.rows import row_slices
from sparkdl.distribute.shared_memory import BLOCK_BYTES

# Shorter arrays are gathered as a whole, which takes half as many steps.
SHORT_BYTES = 1 << 15
# The largest number of bytes that all ranks together gather behind their records.
GATHERED_BYTES = 1 << 19


def longest_in_rounds(nodes: Sequence[str]) -> int:
    """Return the bytes of the longest array that is reduced in rounds; 0 if all take the ring.

    Between hosts, each step takes time; within a host, only many ranks save enough of them. Of
    longer arrays, the ring passes some blocks on while others are added. The rule has no
    measurement in it: a training that is repeated or continued has the same bits.

    Args:
        nodes: host names, by rank.

    Example:
        >>> longest_in_rounds("aabb"), longest_in_rounds("aaaa")
        (32768, 0)
    """
    has_hosts = len(set(nodes)) > 1
    few, many, longest = (4, 8, 8 * SHORT_BYTES) if has_hosts else (8, 16, 2 * SHORT_BYTES)
    if len(nodes) >= many:
        return longest
    return SHORT_BYTES if len(nodes) >= few else 0


def plan_strides(nodes: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the positions in the ring by place on the circle, and the strides, longest first.

    If all hosts have as many ranks, neighbours on the circle are on different hosts, and the long
    strides stay within a host. A long array is then reduced within each host first, and only a
    part of it travels between hosts.

    Args:
        nodes: host names, in ring order.

    Example:
        >>> plan_strides("aaaaa")
        ([0, 1, 2, 3, 4], [3, 2, 1])
        >>> plan_strides("aaaabbbb")
        ([0, 4, 1, 5, 2, 6, 3, 7], [4, 2, 1])
    """
    counts = Counter(nodes)
    num_hosts, num_local = len(counts), counts[nodes[0]]
    if len(set(counts.values())) > 1:
        num_hosts, num_local = len(nodes), 1
    order = [host * num_local + local for local in range(num_local) for host in range(num_hosts)]
    return order, [num_hosts * stride for stride in _halves(num_local)] + _halves(num_hosts)


def _halves(number: int) -> list[int]:
    """Return half of a number, half of the half and so on to 1, each rounded up."""
    found = []
    while number > 1:
        number = (number + 1) // 2
        found.append(number)
    return found


class Strides:
    """The connections of a rank to the ranks some places before and after it.

    Args:
        order: positions in the ring, by place.
        place: the place of this rank.
        strides: the strides, longest first, see `plan_strides`.
        links: the connections, by stride.
    """

    def __init__(
        self, order: Sequence[int], place: int, strides: Sequence[int], links: Sequence[Links]
    ) -> None:
        self.links = list(links)
        self._order = order
        self._place = place
        self._size = len(order)
        self._records: Any = np.empty(0, np.uint8)
        self._data: Any = np.empty(GATHERED_BYTES, np.uint8)
        # Each round has a stride and the next longer one, the number of ranks after the longest.
        bounds = [self._size, *strides]
        self._rounds = [
            (number, stride, bound - stride)
            for number, (bound, stride) in enumerate(pairwise(bounds))
        ]

    def gather(
        self, record: bytes, data: bytes, check: Callable[[Any], int]
    ) -> tuple[list[Any], list[Any]]:
        """Return the records of all ranks, and the data behind each, both in ring order.

        They are views of memory that the next call uses again.

        Args:
            record: begins with the header of the call; as long on all ranks.
            data: more bytes, or none; GATHERED_BYTES of all ranks together, or less.
            check: validates a record that has arrived; returns the number of bytes behind it.
        """
        width = len(record)
        if len(self._records) < self._size * width:
            self._records = np.empty(self._size * width, np.uint8)
        records, parts, ends = memoryview(self._records), memoryview(self._data), [0, len(data)]
        records[:width] = record
        parts[: len(data)] = data

        def arrived(number: int, block: Any) -> None:
            if number:
                return
            for begin in range(0, len(block), width):
                ends.append(ends[-1] + check(block[begin : begin + width]))
            if ends[-1] > ends[stride]:
                receives.append(parts[ends[stride] : ends[-1]])

        for number, stride, count in reversed(self._rounds):
            sends = [records[: count * width]]
            if ends[count]:
                sends.append(parts[: ends[count]])
            receives = [records[stride * width : (stride + count) * width]]
            self.links[number].exchange(sends, receives, len(sends), arrived)
        # What has made s steps comes from the rank s places before this one.
        distances = {self._order[self._place - step]: step for step in range(self._size)}
        steps = [distances[position] for position in range(self._size)]
        return (
            [records[step * width : (step + 1) * width] for step in steps],
            [parts[ends[step] : ends[step + 1]] for step in steps],
        )

    def allreduce(self, header: bytes, flat: Any, result: Any, op: str) -> None:
        """Reduce a flat array over all ranks.

        Args:
            header: the header of the call.
            flat: the values of this rank.
            result: flat array for the result.
            op: one of OPERATIONS; `sum` for a mean of integers, see `quotients_and_remainders`.
        """
        parts = row_slices(flat.size, self._size)
        result[...] = flat
        # Of how many ranks this rank has added the values, by the number of places to the part.
        counts = [1] * self._size
        for number, stride, count in self._rounds:
            # The parts of the ranks further away than the stride go to a rank nearer to them.
            added = list(zip(counts[:count], counts[stride:][:count], strict=True))
            target = self._runs(parts, self._place + stride, added)
            runs = self._runs(parts, self._place, added)
            self._add(self.links[number], header, result, target, runs, op)
            counts[:count] = [own + others for own, others in added]
        finish(result[parts[self._place]], self._size, op)
        for number, stride, count in reversed(self._rounds):
            first, keys = self._place - count + 1, [(0, 0)] * count
            sends = [run for run, _ in self._runs(parts, first, keys)]
            receives = [run for run, _ in self._runs(parts, first - stride, keys)]
            self._copy(self.links[number], header, result, sends, receives)

    def check_calls(self, header: bytes, ring: Links) -> None:
        """Validate that no other rank that sends something to this one calls another collective.

        Ranks whose collectives differ may wait for each other on different connections.

        Args:
            header: the header of this rank's call.
            ring: the links to the neighbours in the ring.

        Raises:
            RuntimeError: if another rank calls another collective.
        """
        for links in (ring, *self.links):
            if len(other := links.peek(HEADER.size)) == HEADER.size:
                check_call(header, other)

    def close(self) -> None:
        """Close all connections; the other ranks notice at once."""
        for links in self.links:
            links.close()

    def _runs(
        self, parts: Sequence[slice], first: int, keys: Sequence[tuple[int, int]]
    ) -> list[tuple[slice, tuple[int, int]]]:
        """Return slices of the array, of at most BLOCK_BYTES items, with their keys.

        Args:
            parts: slices of the array, by place.
            first: the first place; the others follow it.
            keys: a key for each place. Adjacent parts with the same key form one slice.
        """
        first %= self._size
        pairs = [((first + i) % self._size, key) for i, key in enumerate(keys)]
        runs = []
        for (_, key), group in groupby(pairs, key=lambda pair: (pair[0] < first, pair[1])):
            places = [place for place, _ in group]
            runs.append((slice(parts[places[0]].start, parts[places[-1]].stop), key))
        return runs

    @staticmethod
    def _add(
        links: Links,
        header: bytes,
        result: Any,
        sends: Sequence[tuple[slice, tuple[int, int]]],
        receives: Sequence[tuple[slice, tuple[int, int]]],
        op: str,
    ) -> None:
        """Send some slices of an array; add what arrives to others."""
        block_items = max(1, BLOCK_BYTES // result.itemsize)
        to_send = [block for run, _ in sends for block in block_slices(run, block_items)]
        to_add = [(b, key) for run, key in receives for b in block_slices(run, block_items)]
        received_header = bytearray(len(header))

        def arrived(number: int, received: Any) -> None:
            if not number:
                check_header(header, received_header)
                return
            block, (own, others) = to_add[number - 1]
            total = result[block]
            accumulate_values(total, received.view(total.dtype), own, op, total, others)

        blocks = [header, *(bytes_of(result, block) for block in to_send)]
        sizes = [(block.stop - block.start) * result.itemsize for block, _ in to_add]
        links.exchange(blocks, [received_header, *sizes], len(blocks), arrived)

    @staticmethod
    def _copy(
        links: Links, header: bytes, result: Any, sends: Sequence[slice], receives: Sequence[slice]
    ) -> None:
        """Send some complete slices of an array, and receive others."""
        blocks: list[list[Any]] = [
            [
                bytes_of(result, block)
                for run in runs
                for block in block_slices(run, max(1, BLOCK_BYTES // result.itemsize))
            ]
            for runs in (sends, receives)
        ]
        received_header = bytearray(len(header))

        def arrived(number: int, received: Any) -> None:
            if not number:
                check_header(header, received_header)

        links.exchange(
            [header, *blocks[0]], [received_header, *blocks[1]], 1 + len(blocks[0]), arrived
        )
