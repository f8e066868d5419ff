"""Runs in the training process. Collectives over a ring: arrays travel around it in blocks.

Reduce-scatter and all-gather (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
clusters of workstations") form one pipeline: a rank passes each block on as soon as it has added
its own values. One rank computes the value of each part and sends it to all others, so that all
ranks have the same bits.
"""

import itertools
import json
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparkdl.distribute.links import Links

__all__ = ["CALLS", "HEADER", "OPERATIONS", "Ring"]

BLOCK_BYTES = 1 << 20
# Shorter arrays are gathered as a whole, which takes half as many steps.
SHORT_BYTES = 1 << 15
OPERATIONS: dict[str, Any] = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum}

# Each rank sends a header before each collective: number of collectives before, index in CALLS,
# index in OPERATIONS or root, checksum of the dtype's name, number of bytes.
HEADER = struct.Struct("<QHIIQ")
CALLS = ("allreduce", "reduce_scatter", "broadcast", "allgather")


class Ring:
    """This rank's membership in a ring of ranks that train together.

    All ranks call the same methods in the same order.

    Args:
        ranks: all ranks, in ring order.
        rank: this rank.
        links: connections to the neighbours; None in a ring of one rank.
        nodes: host names, by rank.

    Attributes:
        rank: this rank.
        size: number of ranks.
        nodes: host names, by rank.
        is_alone: True if no other rank is present, and none can join.
        broken: the exception that has broken the ring; None in a working ring.
    """

    def __init__(
        self,
        ranks: Sequence[int] = (0,),
        rank: int = 0,
        links: Links | None = None,
        nodes: Sequence[str] = ("",),
    ) -> None:
        self.rank = rank
        self.size = len(ranks)
        self.nodes = list(nodes)
        self.is_alone = self.size == 1
        self.broken: Exception | None = None
        self._ranks = list(ranks)
        self._position = self._ranks.index(rank)
        self._links = links
        self._scratch = np.empty(BLOCK_BYTES if links else 0, np.uint8)
        self._num_calls = 0
        self._lock = threading.Lock()

    def allreduce(self, array: Any, op: str = "mean", out: Any = None) -> Any:
        """Return the mean, sum, minimum or maximum over all ranks, element by element.

        Args:
            array: array of any shape and numeric dtype, the same on all ranks; never written to.
            op: `mean`, `sum`, `min` or `max`. The mean of integers is rounded down.
            out: contiguous array for the result; by default a new array.
        """
        array = _checked(array, op)
        out = np.empty_like(array) if out is None else out
        if self.size == 1:
            out[...] = array
        elif array.nbytes <= SHORT_BYTES:
            self._reduce_short(array, out, op)
        else:
            parts = _even_slices(array.size, self.size)
            self._reduce("allreduce", array, out, parts, op)
        return out

    def reduce_scatter(self, array: Any, op: str = "mean") -> Any:
        """Return this rank's rows of the result of `allreduce`, assigned evenly and in order.

        Args:
            array: see `allreduce`; at least one dimension.
            op: see `allreduce`.
        """
        array = _checked(array, op)
        if self.size == 1:
            return array.copy()
        width, rows = array[:1].size, _even_slices(len(array), self.size)
        # The part at a position is completed by the rank at the previous position, see `_reduce`.
        owners = [self._ranks[position - 1] for position in range(self.size)]
        parts = [slice(rows[rank].start * width, rows[rank].stop * width) for rank in owners]
        out = np.empty_like(array)
        self._reduce("reduce_scatter", array, out, parts, op)
        return out[rows[self.rank]].copy()

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """Return the array of rank `root`; other ranks' arrays determine shape and dtype only."""
        if root not in self._ranks:
            raise ValueError(f"root is {root!r}; expected a rank, from 0 to {self.size - 1}.")
        out = _as_array(array).copy()
        flat = out.reshape(-1).view(np.uint8)
        num_hops = (self._position - self._ranks.index(root)) % self.size
        blocks = [flat[block] for block in _blocks(slice(0, flat.size), BLOCK_BYTES)]
        receives = blocks if num_hops else []
        sends = blocks if num_hops < self.size - 1 else []
        self._exchange("broadcast", root, out, sends, receives, 0 if num_hops else len(sends))
        return out

    def allgather(self, array: Any) -> list[Any]:
        """Return the arrays of all ranks, by rank; they may differ in their first dimension."""
        array = _as_array(array)
        own = array if array.ndim else array.reshape(1)
        shapes = np.zeros((self.size, 2), np.int64)
        shapes[self.rank] = len(own), own[:1].nbytes
        shapes = self.allreduce(shapes, "sum")
        widths = {int(width) for num_rows, width in shapes if num_rows}
        if len(widths) > 1:
            raise ValueError(
                f"allgather got rows of {sorted(widths)} bytes from {self.size} ranks; expected "
                "arrays that differ in their first dimension only."
            )
        outs = [np.empty((num_rows, *own.shape[1:]), own.dtype) for num_rows, _ in shapes]
        outs[self.rank][...] = own
        flats = [outs[rank].reshape(-1).view(np.uint8) for rank in self._ranks]
        blocks = [
            [flat[block] for block in _blocks(slice(0, flat.size), BLOCK_BYTES)] for flat in flats
        ]
        # A rank sends its own array first, and then each array that it has received.
        parts = [blocks[(self._position - step) % self.size] for step in range(self.size)]
        sends = [block for part in parts[:-1] for block in part]
        receives = [block for part in parts[1:] for block in part]
        self._exchange("allgather", 0, own[:0], sends, receives, len(parts[0]))
        return outs if array.ndim else [out.reshape(()) for out in outs]

    def allgather_object(self, value: Any) -> list[Any]:
        """Return the Python values of all ranks, by rank. Small values: they travel as JSON."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        return [json.loads(received.tobytes()) for received in self.allgather(text)]

    def barrier(self) -> None:
        """Block until all ranks have called `barrier`."""
        self.allreduce(np.zeros(1, np.uint8), "sum")

    def close(self) -> None:
        """Leave the ring; the neighbours notice at once."""
        if self._links:
            self._links.close()

    def _reduce_short(self, array: Any, out: Any, op: str) -> None:
        """Gather the arrays of all ranks and reduce them on this rank, in ring order."""
        header = self._header("allreduce", list(OPERATIONS).index(op), array)
        messages = [bytearray(header + array.tobytes())]
        messages += [bytearray(len(messages[0])) for _ in range(self.size - 1)]

        def arrived(number: int) -> None:
            _check_header(header, messages[number + 1][: len(header)])

        self._through(messages[:-1], messages[1:], 1, arrived)
        arrays = [np.frombuffer(m, array.dtype, offset=len(header)) for m in messages]
        # The message of step s comes from the rank s positions before this one.
        ordered = [arrays[(self._position - position) % self.size] for position in range(self.size)]
        total = out.reshape(-1)
        total[...] = ordered[0]
        for values in ordered[1:]:
            OPERATIONS[op](total, values, out=total)
        if op == "mean":
            total[...] = _divide(total, self.size)

    def _reduce(self, call: str, array: Any, out: Any, parts: Sequence[slice], op: str) -> None:
        """Reduce each part on one rank, into `out`; `allreduce` then sends it to all ranks.

        Args:
            call: `allreduce` or `reduce_scatter`.
            array: the values of this rank.
            out: array for the result.
            parts: slices of the flat array, by position in the ring.
            op: a key of OPERATIONS.
        """
        flat, result, combine = array.reshape(-1), out.reshape(-1), OPERATIONS[op]
        size, block_items = self.size, max(1, BLOCK_BYTES // flat.itemsize)
        num_reducing, num_gathering = size - 1, size - 1 if call == "allreduce" else 0
        # At step s, the rank at position p sends part p - s and receives part p - s - 1. While
        # reducing, it adds its own values to the part it receives. The last part of that phase is
        # complete.
        schedule = [
            parts[(self._position - step) % size]
            for step in range(num_reducing + num_gathering + 1)
        ]
        blocks = [_blocks(part, block_items) for part in schedule]
        sources = [flat] + [result] * (num_reducing + num_gathering - 1)
        sends = [_bytes(s, b) for s, part in zip(sources, blocks, strict=False) for b in part]
        to_add = [block for part in blocks[1 : num_reducing + 1] for block in part]
        first_complete = len(to_add) - len(blocks[num_reducing])
        receives = [self._scratch[: (b.stop - b.start) * flat.itemsize] for b in to_add]
        receives += [_bytes(result, b) for part in blocks[num_reducing + 1 :] for b in part]

        def arrived(number: int) -> None:
            if number < len(to_add):
                block = to_add[number]
                combine(receives[number].view(flat.dtype), flat[block], out=result[block])
                if op == "mean" and number >= first_complete:
                    result[block] = _divide(result[block], size)

        operation = list(OPERATIONS).index(op)
        self._exchange(call, operation, array, sends, receives, len(blocks[0]), arrived)

    def _exchange(
        self,
        call: str,
        detail: int,
        array: Any,
        sends: Sequence[Any],
        receives: Sequence[Any],
        num_ready: int,
        arrived: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Exchange blocks behind headers, by which ranks notice that their calls differ.

        Args:
            call: one of CALLS.
            detail: index in OPERATIONS, or root.
            array: array whose dtype and size the header describes.
            sends, receives, num_ready, arrived: see `Links.exchange`.
        """
        own_header = self._header(call, detail, array)
        received_header = bytearray(len(own_header))

        def arrived_behind_header(number: int) -> None:
            if number:
                arrived(number - 1)
            else:
                _check_header(own_header, received_header)

        self._through(
            [own_header, *sends],
            [received_header, *receives],
            1 + num_ready,
            arrived_behind_header,
            lag=1,
        )

    def _through(
        self,
        sends: Sequence[Any],
        receives: Sequence[Any],
        num_ready: int,
        arrived: Callable[[int], None],
        lag: int = 0,
    ) -> None:
        """Call `Links.exchange`, one call at a time; after a failure all further calls fail."""
        if self._links is None:
            return
        with self._lock:
            if self.broken:
                raise self.broken
            try:
                self._links.exchange(sends, receives, num_ready, arrived, lag)
            except Exception as exc:
                self.broken = exc
                raise
            self._num_calls += 1

    def _header(self, call: str, detail: int, array: Any) -> bytes:
        dtype = zlib.crc32(array.dtype.name.encode())
        return HEADER.pack(self._num_calls, CALLS.index(call), detail, dtype, array.nbytes)


def _as_array(array: Any) -> Any:
    array = np.asarray(array, order="C")
    if array.dtype.hasobject or array.dtype.kind in "US":
        raise TypeError(
            f"a collective got an array of {array.dtype}; expected numbers. Use "
            "distribute.allgather_object or broadcast_object for text and other small Python "
            "values."
        )
    return array


def _checked(array: Any, op: str) -> Any:
    array = _as_array(array)
    if op not in OPERATIONS:
        raise ValueError(f"op is {op!r}; expected one of {', '.join(OPERATIONS)}.")
    if op == "mean" and array.dtype.kind == "b":
        raise TypeError("the mean of booleans has no boolean value; cast them, or use op='sum'.")
    return array


def _divide(total: Any, size: int) -> Any:
    return total // size if total.dtype.kind in "iu" else total / total.dtype.type(size)


def _even_slices(count: int, num_slices: int) -> list[slice]:
    """Return consecutive slices of `count` items whose lengths differ by at most one."""
    ends = [count * i // num_slices for i in range(num_slices + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def _blocks(part: slice, num_items: int) -> list[slice]:
    """Return the slices of at most `num_items` items that make up a part."""
    starts = range(part.start, part.stop, num_items)
    return [slice(start, min(start + num_items, part.stop)) for start in starts]


def _bytes(array: Any, block: slice) -> Any:
    return array[block].view(np.uint8)


def _check_header(own: bytes, received: bytearray) -> None:
    """Validate that another rank has called the same collective.

    Raises:
        RuntimeError: if the headers differ.
    """
    if received == own:
        return
    ours, theirs = (HEADER.unpack(header) for header in (own, received))
    raise RuntimeError(
        f"the ranks do not call the same collectives: this rank called {_description(ours)}, and "
        f"another rank {_description(theirs)}"
        f"{'' if ours[3] == theirs[3] else ' of another dtype'}. All ranks must call the same "
        "collectives in the same order, with the same shapes and dtypes."
    )


def _description(header: tuple[int, ...]) -> str:
    number, call, detail, _, nbytes = header
    name = CALLS[call] if call < len(CALLS) else "an unknown collective"
    how = f"from rank {detail} " if name == "broadcast" else f"({list(OPERATIONS)[detail]}) "
    return f"{name} {'' if name == 'allgather' else how}of {nbytes} bytes as number {number}"
