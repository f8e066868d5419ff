"""Runs in the training process. Collectives in about log2 of the number of ranks rounds.

The ranks have places on a circle. In each round, a rank sends to the rank some places after it,
and receives from the rank as many places before it: that number is the stride, and each round has
its own. Gathering goes from the shortest stride to the longest (Bruck and others 1997, "Efficient
algorithms for all-to-all communications in multiport message-passing systems"); reducing goes from
the longest to the shortest, and then back (Traeff 2024, "Optimal, non-pipelined reduce-scatter and
all-reduce algorithms"). Any number of ranks will do. One rank computes the value of each part and
sends it to all others, so that all ranks have the same bits.

Where several hosts have as many ranks each, the long strides stay within a host. An array is then
reduced within each host first, and each rank exchanges only its part of it with other hosts. Each
host sends 2 (H - 1) / H of the bytes of an array, with H hosts, and not 2 (N - 1) / N as in a ring
of N ranks. A longer array goes around a ring of hosts, and in pieces: one of them is between the
hosts, while others are reduced within the hosts.
"""

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sparkdl.distribute.call_header import check_header
from sparkdl.distribute.links import Links
from sparkdl.distribute.operands import block_slices, bytes_of
from sparkdl.distribute.pieces import Parts, nothing, pieces_of, run_in_turns
from sparkdl.distribute.reductions import accumulate_values, finish, reducing_blocks
from sparkdl.distribute.rows import row_slices
from sparkdl.distribute.shared_memory import BLOCK_BYTES
from sparkdl.distribute.stride_plan import MEDIUM_BYTES, Plan

# The largest number of bytes that all ranks together gather behind their records.
GATHERED_BYTES = 1 << 19
# Of a part that goes around the ring of hosts, a block is passed on while the next one is added.
CROSSING_BYTES = 1 << 17


class _Round(NamedTuple):
    """A round: ranks send to those that are `stride` places after them.

    Attributes:
        number: number of the stride.
        stride: number of places.
        counts: of the parts that are added, one for each rank whose part this is: of how many
            ranks the receiver has added the values, and of how many more come.
    """

    number: int
    stride: int
    counts: list[tuple[int, int]]


class Strides:
    """The connections of a rank to the ranks some places before and after it.

    Args:
        plan: the places of all ranks, and the strides.
        place: the place of this rank.
        links: the connections, by stride.
    """

    def __init__(self, plan: Plan, place: int, links: Sequence[Links]) -> None:
        self.links = list(links)
        self._order = plan.order
        self._place = place
        self._size = len(plan.order)
        self._caller = 0  # The thread of the call.
        self._records: Any = np.empty(0, np.uint8)
        self._data: Any = np.empty(GATHERED_BYTES, np.uint8)
        self._rounds: list[_Round] = []
        # Of how many ranks this rank has added the values, by the number of places to the part.
        counts = [1] * self._size
        for number, (bound, stride) in enumerate(pairwise([self._size, *plan.strides])):
            added = list(zip(counts[: bound - stride], counts[stride:bound], strict=True))
            self._rounds.append(_Round(number, stride, added))
            counts[: bound - stride] = [own + others for own, others in added]
        self._local, self._crossing = self._rounds[: plan.num_local], self._rounds[plan.num_local :]

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

        for number, stride, counts in reversed(self._rounds):
            count = len(counts)
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

    def reduce(self, header: bytes, flat: Any, result: Any, op: str, gathers: bool) -> None:
        """Reduce a flat array over all ranks.

        Args:
            header: the header of the call.
            flat: the values of this rank.
            result: flat array for the result.
            op: one of OPERATIONS; `sum` for a mean of integers, see `quotients_and_remainders`.
            gathers: give all ranks the whole result, and not only the part of their place.
        """
        parts = row_slices(flat.size, self._size)

        def cross(piece: Parts) -> None:
            self._reduce_hosts(header, flat, result, piece, op, gathers)

        def gather(piece: Parts, wait: Callable[[], object]) -> None:
            if gathers:
                self._copy(self._local, header, result, piece, wait)

        def reduce(piece: Parts) -> None:
            self._add(self._local, header, flat, result, piece, op)

        self._in_turns(flat.nbytes, parts, reduce, cross, gather)

    def gather_parts(self, header: bytes, whole: Any, parts: Parts) -> None:
        """Give all ranks all parts of a flat array.

        Args:
            header: the header of the call.
            whole: the array.
            parts: consecutive slices of it, by the place of the rank that has the values.
        """
        self._in_turns(
            whole.nbytes,
            parts,
            lambda piece: None,
            lambda piece: self._gather_hosts(header, whole, piece),
            lambda piece, wait: self._copy(self._local, header, whole, piece, wait),
        )

    def close(self) -> None:
        """Close all connections; the other ranks notice at once."""
        for links in self.links:
            links.close()

    def _in_turns(
        self,
        num_bytes: int,
        parts: Parts,
        reduce: Callable[[Parts], None],
        cross: Callable[[Parts], None],
        gather: Callable[[Parts, Callable[[], object]], None],
    ) -> None:
        """Reduce each piece of an array within hosts, exchange it between, and gather it within."""
        self._caller = threading.get_ident()
        can_overlap = self._local and self._crossing
        pieces = pieces_of(parts, num_bytes if can_overlap else 0)
        run_in_turns(pieces, reduce, cross, gather, self.close)

    def _reduce_hosts(
        self,
        header: bytes,
        flat: Any,
        result: Any,
        parts: Parts,
        op: str,
        gathers: bool,
    ) -> None:
        """Reduce what has been reduced within hosts, or nowhere.

        Args:
            header, flat, result, op, gathers: see `reduce`.
            parts: slices of the array, by place.
        """
        if not self._has_hosts_in_ring(flat.nbytes):
            self._add(self._crossing, header, flat, result, parts, op)
            finish(result[parts[self._place]], self._size, op)
            if gathers:
                self._copy(self._crossing, header, result, parts)
            return
        before = self._parts_before(parts)
        ahead = [parts[(self._place + step) % self._size] for step in range(len(before))]
        sends, receives, num_ready, arrived = reducing_blocks(
            result,
            result,
            ahead[::-1],
            before[1:] if gathers else [],
            op,
            self._size,
            CROSSING_BYTES,
        )
        self._exchange(-1, header, sends, receives, arrived, num_ready=num_ready)

    def _gather_hosts(self, header: bytes, whole: Any, parts: Parts) -> None:
        """Give the ranks with the same place on all hosts their parts, see `gather_parts`."""
        if not self._has_hosts_in_ring(whole.nbytes):
            self._copy(self._crossing, header, whole, parts)
            return
        blocks = [
            [bytes_of(whole, one) for one in block_slices(part, CROSSING_BYTES // whole.itemsize)]
            for part in self._parts_before(parts)
        ]
        sends = [block for part in blocks[:-1] for block in part]
        receives = [block for part in blocks[1:] for block in part]
        self._exchange(-1, header, sends, receives, num_ready=len(blocks[0]))

    def _has_hosts_in_ring(self, num_bytes: int) -> bool:
        """Return True if an array goes around a ring of hosts, which the shortest stride makes."""
        return bool(self._local) and num_bytes > MEDIUM_BYTES

    def _parts_before(self, parts: Parts) -> list[slice]:
        """Return the parts of this rank, and of those before it on other hosts."""
        num_hosts = self._crossing[0].stride + len(self._crossing[0].counts)
        return [parts[self._place - step] for step in range(num_hosts)]

    def _runs(
        self, parts: Parts, first: int, keys: Sequence[tuple[int, int]]
    ) -> list[tuple[slice, tuple[int, int]]]:
        """Return slices of the array, with their keys.

        Args:
            parts: slices of the array, by place.
            first: the first place; the others follow it.
            keys: a key for each place. Adjacent parts with the same key form one slice.
        """
        runs: list[tuple[slice, tuple[int, int]]] = []
        for number, key in enumerate(keys):
            part = parts[(first + number) % self._size]
            if runs and runs[-1][1] == key and runs[-1][0].stop == part.start:
                part = slice(runs.pop()[0].start, part.stop)
            runs.append((part, key))
        return runs

    def _add(
        self,
        rounds: Sequence[_Round],
        header: bytes,
        flat: Any,
        result: Any,
        parts: Parts,
        op: str,
    ) -> None:
        """Reduce: in each round, send some parts of an array, and add what arrives to others.

        Args:
            rounds: the rounds; before the first of all, `result` has no values.
            header, flat, result, op: see `reduce`.
            parts: slices of the array, by place.
        """
        for a_round in rounds:
            source = result if a_round.number else flat
            for place in range(len(a_round.counts), 0 if a_round.number else a_round.stride):
                kept = parts[(self._place + place) % self._size]
                result[kept] = flat[kept]
            self._add_round(a_round, header, source, result, parts, op)

    def _add_round(
        self,
        a_round: _Round,
        header: bytes,
        source: Any,
        result: Any,
        parts: Parts,
        op: str,
    ) -> None:
        number, stride, counts = a_round
        # The parts of the ranks further away than the stride go to a rank nearer to them.
        to_send = _blocks(self._runs(parts, self._place + stride, counts), result.itemsize)
        to_add = _blocks(self._runs(parts, self._place, counts), result.itemsize)

        def arrived(number: int, received: Any) -> None:
            block, (own, others) = to_add[number]
            total, more = source[block], received.view(result.dtype)
            accumulate_values(total, more, own, op, result[block], others)

        sends = [bytes_of(source, block) for block, _ in to_send]
        receives = [(block.stop - block.start) * result.itemsize for block, _ in to_add]
        self._exchange(number, header, sends, receives, arrived)

    def _copy(
        self,
        rounds: Sequence[_Round],
        header: bytes,
        result: Any,
        parts: Parts,
        wait: Callable[[], object] = nothing,
    ) -> None:
        """Gather: in each round, send some complete parts of an array, and receive others.

        Args:
            rounds, header, result, parts: see `_add`.
            wait: called first; returns when the array has the parts to send.
        """
        for number, stride, counts in reversed(rounds):
            first, keys = self._place - len(counts) + 1, [(0, 0)] * len(counts)
            sends, receives = (
                [
                    bytes_of(result, block)
                    for block, _ in _blocks(self._runs(parts, begin, keys), result.itemsize)
                ]
                for begin in (first, first - stride)
            )
            self._exchange(number, header, sends, receives, wait=wait)
            wait = nothing

    def _exchange(
        self,
        number: int,
        header: bytes,
        sends: Sequence[Any],
        receives: Sequence[Any],
        arrived: Callable[[int, Any], None] = lambda number, block: None,
        wait: Callable[[], object] = nothing,
        num_ready: int | None = None,
    ) -> None:
        """Exchange blocks behind headers on the connections of a stride, see `Links.exchange`."""
        received_header = bytearray(len(header))

        def arrived_behind_header(number: int, block: Any) -> None:
            if number:
                arrived(number - 1, block)
            else:
                check_header(header, received_header)

        self.links[number].exchange(
            [header, *sends],
            [received_header, *receives],
            1 + (len(sends) if num_ready is None else num_ready),
            arrived_behind_header,
            lag=1,
            wait=wait,
            is_beside=threading.get_ident() != self._caller,
        )


def _blocks(
    runs: Sequence[tuple[slice, tuple[int, int]]], itemsize: int
) -> list[tuple[slice, tuple[int, int]]]:
    """Return the slices of at most BLOCK_BYTES that make up some others, with their keys."""
    num_items = max(1, BLOCK_BYTES // itemsize)
    return [(block, key) for run, key in runs for block in block_slices(run, num_items)]
