"""Runs in the training process. Collectives over a ring: arrays travel around it in blocks.

Reduce-scatter and all-gather (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
clusters of workstations") form one pipeline: a rank passes each block on as soon as it has added
its own values. One rank computes the value of each part and sends it to all others, so that all
ranks have the same bits.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.aligned_memory import aligned_copy, aligned_empty
from sparkdl.distribute.call_header import OPERATIONS, check_header, pack_header
from sparkdl.distribute.operands import (
    all_blocks,
    as_array,
    block_slices,
    check_operand,
)
from sparkdl.distribute.reductions import (
    has_whole_mean,
    quotients_and_remainders,
    reduce_arrays,
    reducing_blocks,
    whole_mean,
)
from sparkdl.distribute.ring_calls import RingCalls
from sparkdl.distribute.rows import check_row_bytes, check_splits, row_bytes, row_slices, split_rows
from sparkdl.distribute.shared_memory import BLOCK_BYTES


class Ring(RingCalls):
    """This rank's membership in a ring of ranks that train together, see `RingCalls`."""

    def allreduce(self, array: Any, op: str = "mean", out: Any = None) -> Any:
        """Return the mean, sum, minimum, maximum or product over all ranks, element by element.

        Args:
            array: array of any shape and numeric dtype, the same on all ranks; never written to.
            op: `mean`, `sum`, `min`, `max` or `product`. The mean of integers is rounded down. A
                mean of integers, float16 or bfloat16 does not overflow; sums and products may.
            out: contiguous array for the result; by default a new array.
        """
        array = check_operand(array, op)
        out = aligned_empty(array.shape, array.dtype) if out is None else out
        if self.size == 1:
            out[...] = array
            return out
        with self._lock:
            if array.nbytes <= self._short_bytes:
                messages = self._gather_short("allreduce", OPERATIONS.index(op), array)
                self._reduce_messages(messages, out, op)
            else:
                self._reduce("allreduce", array, out, op)
        return out

    def reduce_scatter(self, array: Any, op: str = "mean") -> Any:
        """Return this rank's rows of the result of `allreduce`, see `row_slices`.

        Args:
            array: see `allreduce`; at least one dimension.
            op: see `allreduce`.
        """
        array = check_operand(array, op)
        if array.ndim == 0:
            raise ValueError("reduce_scatter got a number; expected at least one dimension.")
        if self.size == 1:
            return array.copy()
        width = array[:1].size
        rows = row_slices(len(array), self.size)
        parts = [slice(rows[rank].start * width, rows[rank].stop * width) for rank in self._ranks]
        out = np.empty_like(array)
        self._reduce("reduce_scatter", array, out, op, parts)
        return aligned_copy(out[rows[self.rank]])

    @property
    def own_part(self) -> int:
        """The number of the part that this rank completes in `allreduce`."""
        return self._part_numbers[self._position]

    def part_of(self, count: int) -> slice:
        """Return the part of a flat array whose values this rank completes in `allreduce`.

        Args:
            count: number of elements of the array.
        """
        return row_slices(count, self.size)[self.own_part]

    def reduce_part(self, flat: Any, op: str, out: Any) -> Any:
        """Return this rank's part of the result of `allreduce`, with the same bits, as a view.

        Args:
            flat: flat array, see `allreduce`.
            op: see `allreduce`.
            out: array as long as `flat`, of which the other parts get values without a meaning.
        """
        flat, part = check_operand(flat, op), self.part_of(flat.size)
        if self.size == 1 or flat.nbytes <= self._short_bytes:
            return self.allreduce(flat, op, out)[part]
        self._reduce("reduce_part", flat, out, op)
        return out[part]

    def gather_parts(self, whole: Any, parts: Sequence[slice]) -> None:
        """Give all ranks all parts of a flat array, of which each rank has one.

        Args:
            whole: flat array; the part of this rank has its values, the others get theirs.
            parts: consecutive slices of the array. That of a rank has the number `own_part`.
        """
        numbers = self._part_numbers
        with self._lock:
            if self.size > 1 and whole.nbytes <= self._short_bytes:
                # All messages are equally long.
                message = np.zeros(max(part.stop - part.start for part in parts), whole.dtype)
                own = whole[parts[self.own_part]]
                message[: own.size] = own
                messages = self._gather_short("allgather", 0, message)
                for number, received in zip(numbers, messages, strict=True):
                    part = whole[parts[number]]
                    part[...] = np.frombuffer(received, whole.dtype)[: part.size]
                return
            if strides := self._strides_for("allgather", 0, whole):
                header = pack_header(self._num_calls, "allgather", 0, whole)
                with self._called(header):
                    strides.gather_parts(header, whole, parts)
                return
            steps = [numbers[self._position - step] for step in range(self.size)]
            blocks = [all_blocks([whole[parts[number]]]) for number in steps]
            sends = [block for part in blocks[:-1] for block in part]
            receives = [block for part in blocks[1:] for block in part]
            self._exchange("allgather", 0, whole, sends, receives, len(blocks[0]))

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """Return the array of rank `root`; other ranks' arrays determine shape and dtype only."""
        if root not in self._ranks:
            raise ValueError(f"root is {root!r}; expected a rank, from 0 to {self.size - 1}.")
        array = as_array(array)
        out = aligned_copy(array) if self.rank == root else aligned_empty(array.shape, array.dtype)
        flat = out.reshape(-1).view(np.uint8)
        num_hops = (self._position - self._ranks.index(root)) % self.size
        blocks = [flat[block] for block in block_slices(slice(0, flat.size), BLOCK_BYTES)]
        receives = blocks if num_hops else []
        sends = blocks if num_hops < self.size - 1 else []
        self._exchange("broadcast", root, out, sends, receives, 0 if num_hops else len(sends))
        return out

    def allgather(self, array: Any) -> list[Any]:
        """Return the arrays of all ranks, by rank; they may differ in their first dimension."""
        array = as_array(array)
        parts = split_rows(*self.allgather_rows(array if array.ndim else array.reshape(1)))
        return parts if array.ndim else [part.reshape(()) for part in parts]

    def allgather_rows(self, array: Any) -> tuple[Any, list[int]]:
        """Return the rows of all ranks, by rank, as one array; and how many come from each rank.

        Args:
            array: array of at least one dimension, see `allgather`.
        """
        rows = as_array(array)
        with self._lock:
            shapes = np.zeros((self.size, 2), np.int64)
            shapes[self.rank] = len(rows), row_bytes(rows)
            shapes = self.allreduce(shapes, "sum")
            check_row_bytes("allgather", shapes[:, 1], self.size)
            counts = [int(num_rows) for num_rows, _ in shapes]
            whole = aligned_empty((sum(counts), *rows.shape[1:]), rows.dtype)
            outs = split_rows(whole, counts)
            blocks = [
                all_blocks([outs[rank] if rank != self.rank else rows]) for rank in self._ranks
            ]
            # A rank sends its own array first, and then each array that it has received.
            parts = [blocks[(self._position - step) % self.size] for step in range(self.size)]
            sends = [block for part in parts[:-1] for block in part]
            receives = [block for part in parts[1:] for block in part]
            self._exchange("allgather", 0, rows[:0], sends, receives, len(parts[0]))
        outs[self.rank][...] = rows
        return whole, counts

    def alltoall(self, array: Any, splits: Sequence[int]) -> list[Any]:
        """Return the rows that all ranks have for this rank, by the rank that they come from.

        Args:
            array: array of any shape and numeric dtype; ranks may differ in the first dimension.
            splits: number of rows for each rank, by rank, in the order of the rows.

        Raises:
            ValueError: see `check_splits`.
        """
        return split_rows(*self.alltoall_rows(array, splits))

    def alltoall_rows(self, array: Any, splits: Sequence[int]) -> tuple[Any, list[int]]:
        """Return the rows of `alltoall` as one array, and how many come from each rank.

        Args:
            array, splits: see `alltoall`.
        """
        array = as_array(array)
        check_splits(array, splits, self.size)
        with self._lock:
            table = np.zeros((self.size, self.size + 1), np.int64)
            table[self.rank] = [*splits, row_bytes(array)]
            table = self.allreduce(table, "sum")
            check_row_bytes("alltoall", table[:, -1], self.size)
            counts = [int(count) for count in table[:, self.rank]]
            whole = aligned_empty((sum(counts), *array.shape[1:]), array.dtype)
            # The rows for this rank, by the rank that they come from.
            parts, own_rows = split_rows(whole, counts), split_rows(array, splits)
            forwarded = [own_rows[to] for to in self._from_here()[1:]]
            # At step s, a rank receives the rows of the rank s positions before it, those for
            # itself first, and passes on the others.
            for step in range(1, self.size):
                origin = self._ranks[(self._position - step) % self.size]
                nums = table[origin, self._from_here()[: self.size - step]]
                rows = [np.empty((count, *array.shape[1:]), array.dtype) for count in nums[1:]]
                rows.insert(0, parts[origin])
                sends, receives = all_blocks(forwarded), all_blocks(rows)
                self._exchange("alltoall", step, array[:0], sends, receives, len(sends))
                forwarded = rows[1:]
        parts[self.rank][...] = own_rows[self.rank]
        return whole, counts

    def swap(self, array: Any, bit: int, count: int) -> Any:
        """Return the array of the rank whose number differs in one bit; that rank gets this one's.

        All ranks call it, and their number is a power of two.

        Args:
            array: flat array, not empty.
            bit: number of the bit.
            count: number of elements of the other array, which has the same dtype.
        """
        partner = self.rank ^ 1 << bit
        with self._lock:
            pairs = self._opened_pairs(array[:0])
            if not pairs:
                splits = [array.size if rank == partner else 0 for rank in range(self.size)]
                return self.alltoall(array, splits)[partner]
            out = aligned_empty((count,), array.dtype)
            header = pack_header(self._num_calls, "swap", 0, array[:0])
            received_header = bytearray(len(header))

            def arrived(number: int, block: Any) -> None:
                if not number:
                    check_header(header, received_header)

            sends, receives = [header, *all_blocks([array])], [received_header, *all_blocks([out])]
            with self._called(header):
                pairs[bit].exchange(sends, receives, len(sends), arrived)
        return out

    def allgather_record(self, record: bytes) -> list[bytes]:
        """Return the records of all ranks, by rank: one trip around the ring.

        Args:
            record: a few bytes, as many on all ranks.
        """
        with self._lock:
            messages = self._gather_short("allgather", 0, np.frombuffer(record, np.uint8))
            records = [bytes(message) for message in messages]
        return [records[self._ranks.index(rank)] for rank in range(self.size)]

    def allgather_object(self, value: Any) -> list[Any]:
        """Return the Python values of all ranks, by rank. Small values: they travel as JSON."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        return [json.loads(received.tobytes()) for received in self.allgather(text)]

    def vote(self, vote: int, array: Any = None, op: str = "mean", out: Any = None) -> int:
        """Return the smallest vote of all ranks; reduce an array on the same trip around the ring.

        Args:
            vote: a number from 0 to 255.
            array: see `allreduce`. It is reduced if all votes are equal; all ranks must give one
                then.
            op: see `allreduce`.
            out: contiguous array for the result.
        """
        if self.size == 1:
            if array is not None:
                out[...] = array
            return vote
        values = np.empty(0, np.uint8) if array is None else check_operand(array, op)
        with self._lock:
            is_short = values.nbytes <= self._short_bytes
            data = values.tobytes() if is_short else b""
            votes, arrays = self._vote(vote, OPERATIONS.index(op), values, data)
            if set(votes) == {vote} and all(arrays):
                self._reduce_messages(arrays, out, op)
            elif set(votes) == {vote} and not is_short:
                self.allreduce(values, op, out)
        return min(votes)

    def barrier(self) -> None:
        """Block until all ranks have called `barrier`."""
        self.allreduce(np.zeros(1, np.uint8), "sum")

    def _from_here(self) -> list[int]:
        """Return all ranks in ring order, beginning with this rank."""
        return self._ranks[self._position :] + self._ranks[: self._position]

    def _reduce_messages(self, messages: Sequence[Any], out: Any, op: str) -> None:
        """Reduce arrays of all ranks.

        Args:
            messages: their bytes, in ring order.
            out, op: see `allreduce`.
        """
        arrays = [np.frombuffer(message, out.dtype) for message in messages]
        reduce_arrays(arrays, out.reshape(-1), op)

    def _reduce(
        self, call: str, array: Any, out: Any, op: str, parts: Sequence[slice] | None = None
    ) -> None:
        """Reduce each part on one rank, into `out`; `allreduce` then sends it to all ranks.

        Args:
            call: `allreduce`, `reduce_scatter` or `reduce_part`.
            array: the values of this rank.
            out: array for the result.
            op: one of OPERATIONS.
            parts: slices of the flat array, by position of the rank that completes them; by
                default those of `part_of`.
        """
        operation = OPERATIONS.index(op)
        strides = self._strides_for(call, operation, array) if parts is None else None
        slices = row_slices(array.size, self.size)
        parts = parts or [slices[number] for number in self._part_numbers]

        def reduce(flat: Any, result: Any, op: str) -> Any:
            if strides:
                header = pack_header(self._num_calls, call, operation, array)
                with self._called(header):
                    strides.reduce(header, flat, result, op, gathers=call == "allreduce")
                return result
            # A rank sends the part of the rank before it first, and its own part arrives last.
            schedule = [parts[self._position - 1 - step] for step in range(self.size)]
            # The complete parts go around in the same order.
            gathered = schedule[:-1] if call == "allreduce" else []
            blocks = reducing_blocks(flat, result, schedule, gathered, op, self.size)
            self._exchange(call, operation, array, *blocks)
            return result

        if not has_whole_mean(array.dtype, op):
            reduce(array.reshape(-1), out.reshape(-1), op)
            return
        with self._lock:
            quotients, remainders = (
                reduce(values, np.empty_like(values), "sum")
                for values in quotients_and_remainders(array.reshape(-1), self.size)
            )
        out.reshape(-1)[...] = whole_mean(quotients, remainders, self.size)
