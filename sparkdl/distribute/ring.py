"""Runs in the training process. The ring: arrays of all ranks made one, in blocks that go round.

Reduce-scatter and all-gather (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
clusters of workstations") as one pipeline: each block is passed on as soon as it is added. The
value of each part is made by one rank and given to all, so that all ranks have the same bits.
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
# What is shorter goes round as a whole, in half as many steps.
SHORT_BYTES = 1 << 15
OPERATIONS: dict[str, Any] = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum}

# What a rank says before each collective: how many came before, which this is, its operation or
# root, of which dtype (a checksum of its name) and of how many bytes.
HEADER = struct.Struct("<QHIIQ")
CALLS = ("allreduce", "reduce_scatter", "broadcast", "allgather")


class Ring:
    """This rank's place among the ranks that train together.

    All ranks call the same methods in the same order.

    Args:
        ranks: of all, in the order of the ring.
        rank: this one.
        links: to the neighbours; None in a ring of one.
        nodes: the host of each, by rank.
    """

    def __init__(
        self,
        ranks: Sequence[int] = (0,),
        rank: int = 0,
        links: Links | None = None,
        nodes: Sequence[str] = ("",),
    ) -> None:
        self.rank, self.size, self.nodes = rank, len(ranks), list(nodes)
        self.is_alone = self.size == 1  # There is no other rank, and none will come.
        self._ranks, self._place, self._links = list(ranks), list(ranks).index(rank), links
        self._scratch = np.empty(BLOCK_BYTES if links else 0, np.uint8)
        self._calls = 0
        self._lock = threading.Lock()
        self.broken: Exception | None = None

    def allreduce(self, array: Any, op: str = "mean", out: Any = None) -> Any:
        """The mean, sum, minimum or maximum over all ranks, element by element.

        Args:
            array: of any shape and numeric dtype, the same on all ranks; never written to.
            op: `mean`, `sum`, `min` or `max`. The mean of integers is rounded down.
            out: where the result goes, contiguous; by default a new array.
        """
        array = _numeric(array, op)
        out = np.empty_like(array) if out is None else out
        if self.size == 1:
            out[...] = array
        elif array.nbytes <= SHORT_BYTES:
            self._reduce_short(array, out, op)
        else:
            parts = _divided(array.size, self.size)
            self._reduce("allreduce", array, out, parts, op)
        return out

    def reduce_scatter(self, array: Any, op: str = "mean") -> Any:
        """This rank's rows of what `allreduce` gives; they are dealt out in order, equally.

        Args:
            array: with at least one dimension, see `allreduce`.
            op: see `allreduce`.
        """
        array = _numeric(array, op)
        if self.size == 1:
            return array.copy()
        width, rows = array[:1].size, _divided(len(array), self.size)
        # The value of a part is made at the place before it, see `_reduce`.
        owners = [self._ranks[place - 1] for place in range(self.size)]
        parts = [slice(rows[r].start * width, rows[r].stop * width) for r in owners]
        out = np.empty_like(array)
        self._reduce("reduce_scatter", array, out, parts, op)
        return out[rows[self.rank]].copy()

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """The array of rank `root`; the others' tell shape and dtype."""
        if root not in self._ranks:
            raise ValueError(f"root is {root!r}; expected a rank, from 0 to {self.size - 1}.")
        out = _plain(array).copy()
        flat = out.reshape(-1).view(np.uint8)
        hops = (self._place - self._ranks.index(root)) % self.size
        blocks = [flat[b] for b in _blocks(slice(0, flat.size), BLOCK_BYTES)]
        receives = blocks if hops else []
        sends = blocks if hops < self.size - 1 else []
        self._exchange("broadcast", root, out, sends, receives, 0 if hops else len(sends))
        return out

    def allgather(self, array: Any) -> list[Any]:
        """The arrays of all ranks, by rank; they may differ in their first dimension."""
        array = _plain(array)
        mine = array if array.ndim else array.reshape(1)
        shapes = np.zeros((self.size, 2), np.int64)
        shapes[self.rank] = len(mine), mine[:1].nbytes
        shapes = self.allreduce(shapes, "sum")
        widths = {int(width) for count, width in shapes if count}
        if len(widths) > 1:
            raise ValueError(
                f"allgather got rows of {sorted(widths)} bytes from {self.size} ranks; expected "
                "arrays that differ in their first dimension only."
            )
        outs = [np.empty((count, *mine.shape[1:]), mine.dtype) for count, _ in shapes]
        outs[self.rank][...] = mine
        flats = [outs[rank].reshape(-1).view(np.uint8) for rank in self._ranks]
        blocks = [[flat[b] for b in _blocks(slice(0, flat.size), BLOCK_BYTES)] for flat in flats]
        # What this rank tells first is its own, then what it has heard.
        told = [blocks[(self._place - step) % self.size] for step in range(self.size)]
        sends = [block for part in told[:-1] for block in part]
        receives = [block for part in told[1:] for block in part]
        self._exchange("allgather", 0, mine[:0], sends, receives, len(told[0]))
        return outs if array.ndim else [out.reshape(()) for out in outs]

    def allgather_object(self, thing: Any) -> list[Any]:
        """Small Python values of all ranks, by rank; they travel as JSON."""
        text = np.frombuffer(json.dumps(thing).encode(), np.uint8)
        return [json.loads(came.tobytes()) for came in self.allgather(text)]

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.allreduce(np.zeros(1, np.uint8), "sum")

    def close(self) -> None:
        """Leave the ring; the neighbours notice at once."""
        if self._links:
            self._links.close()

    def _reduce_short(self, array: Any, out: Any, op: str) -> None:
        """Gather the arrays of all places and reduce them here, in the order of the ring."""
        mine = self._header("allreduce", list(OPERATIONS).index(op), array)
        told = [bytearray(mine + array.tobytes())]
        told += [bytearray(len(told[0])) for _ in range(self.size - 1)]

        def arrived(number: int) -> None:
            _check(mine, told[number + 1][: len(mine)])

        self._through(told[:-1], told[1:], 1, arrived)
        arrays = [np.frombuffer(one, array.dtype, offset=len(mine)) for one in told]
        # What came after s steps is of the place s before this one.
        ordered = [arrays[(self._place - place) % self.size] for place in range(self.size)]
        total = out.reshape(-1)
        total[...] = ordered[0]
        for one in ordered[1:]:
            OPERATIONS[op](total, one, out=total)
        if op == "mean":
            total[...] = _share(total, self.size)

    def _reduce(self, call: str, array: Any, out: Any, parts: Sequence[slice], op: str) -> None:
        """Reduce each part at one place, into `out`; `allreduce` gives it to all places then."""
        flat, result, combine = array.reshape(-1), out.reshape(-1), OPERATIONS[op]
        size, each = self.size, max(1, BLOCK_BYTES // flat.itemsize)
        reducing, gathering = size - 1, size - 1 if call == "allreduce" else 0
        # At step s a place tells part (place - s) and hears the one before it; what it hears while
        # reducing it adds its own to. The last it adds to is then whole.
        told = [parts[(self._place - s) % size] for s in range(reducing + gathering + 1)]
        blocks = [_blocks(part, each) for part in told]
        source = [flat] + [result] * (reducing + gathering - 1)
        sends = [_bytes(s, b) for s, part in zip(source, blocks, strict=False) for b in part]
        adds = [b for part in blocks[1 : reducing + 1] for b in part]
        whole = len(adds) - len(blocks[reducing])
        receives = [self._scratch[: (b.stop - b.start) * flat.itemsize] for b in adds]
        receives += [_bytes(result, b) for part in blocks[reducing + 1 :] for b in part]

        def arrived(number: int) -> None:
            if number < len(adds):
                block = adds[number]
                combine(receives[number].view(flat.dtype), flat[block], out=result[block])
                if op == "mean" and number >= whole:
                    result[block] = _share(result[block], size)

        which = list(OPERATIONS).index(op)
        self._exchange(call, which, array, sends, receives, len(blocks[0]), arrived)

    def _exchange(
        self,
        call: str,
        which: int,
        array: Any,
        sends: Sequence[Any],
        receives: Sequence[Any],
        ready: int,
        arrived: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Exchange blocks, behind headers by which ranks notice that they call different things."""
        mine = self._header(call, which, array)
        theirs = bytearray(len(mine))

        def came(number: int) -> None:
            if number:
                arrived(number - 1)
            else:
                _check(mine, theirs)

        self._through([mine, *sends], [theirs, *receives], 1 + ready, came, lag=1)

    def _through(
        self,
        sends: Sequence[Any],
        receives: Sequence[Any],
        ready: int,
        arrived: Callable[[int], None],
        lag: int = 0,
    ) -> None:
        """`Links.exchange`, one at a time; after a failure it fails for ever."""
        if self._links is None:
            return
        with self._lock:
            if self.broken:
                raise self.broken
            try:
                self._links.exchange(sends, receives, ready, arrived, lag)
            except Exception as exc:
                self.broken = exc
                raise
            self._calls += 1

    def _header(self, call: str, which: int, array: Any) -> bytes:
        dtype = zlib.crc32(array.dtype.name.encode())
        return HEADER.pack(self._calls, CALLS.index(call), which, dtype, array.nbytes)


def _plain(array: Any) -> Any:
    array = np.asarray(array, order="C")
    if array.dtype.hasobject or array.dtype.kind in "US":
        raise TypeError(
            f"a collective got an array of {array.dtype}; expected numbers. Text and other small "
            "Python values go through distribute.allgather_object and broadcast_object."
        )
    return array


def _numeric(array: Any, op: str) -> Any:
    array = _plain(array)
    if op not in OPERATIONS:
        raise ValueError(f"op is {op!r}; expected one of {', '.join(OPERATIONS)}.")
    if op == "mean" and array.dtype.kind == "b":
        raise TypeError("the mean of booleans has no boolean value; cast them, or use op='sum'.")
    return array


def _share(total: Any, size: int) -> Any:
    return total // size if total.dtype.kind in "iu" else total / total.dtype.type(size)


def _divided(count: int, size: int) -> list[slice]:
    """So many things as equally among as many as one can."""
    ends = [count * i // size for i in range(size + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def _blocks(part: slice, each: int) -> list[slice]:
    return [slice(i, min(i + each, part.stop)) for i in range(part.start, part.stop, each)]


def _bytes(array: Any, block: slice) -> Any:
    return array[block].view(np.uint8)


def _check(mine: bytes, theirs: bytearray) -> None:
    """See that another rank calls the same.

    Raises:
        RuntimeError: it does not.
    """
    if theirs == mine:
        return
    ours, others = (HEADER.unpack(header) for header in (mine, theirs))
    raise RuntimeError(
        f"the ranks do not call the same collectives: this one called {_told(ours)}, and another "
        f"{_told(others)}{'' if ours[3] == others[3] else ' of another dtype'}. All ranks must "
        "call the same, with the same shapes and dtypes, in the same order."
    )


def _told(header: tuple[int, ...]) -> str:
    number, call, which, _, nbytes = header
    name = CALLS[call] if call < len(CALLS) else "something else"
    how = f"from rank {which}" if name == "broadcast" else f"({list(OPERATIONS)[which]})"
    return f"{name} {'' if name == 'allgather' else how + ' '}of {nbytes} bytes as number {number}"
