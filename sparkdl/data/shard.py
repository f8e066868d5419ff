"""Runs anywhere (pure). Divide rows among ranks so that all ranks take the same number of steps.

All rows form one sequence, piece after piece; each rank takes a contiguous part of it. The parts
differ by at most one row. With `pad` the shorter parts repeat a row, so that every rank has batches
of the same sizes; with `drop` every rank leaves out the rows that do not fill a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

LAST_BATCH = ("pad", "drop")


@dataclass(frozen=True)
class Range:
    """Rows `start <= i < stop` of one piece, such as a file or a row group."""

    piece: int
    start: int
    stop: int


@dataclass(frozen=True)
class Share:
    """The rows that one rank reads in one pass.

    Attributes:
        ranges: the rank's rows in reading order; a repeated row comes last.
        rows: number of rows of all ranks together.
        padded: number of rows that are repeated, over all ranks.
        dropped: number of rows that are left out, over all ranks.
        steps: number of batches of each rank.
    """

    ranges: tuple[Range, ...]
    rows: int
    padded: int
    dropped: int
    steps: int


def share(
    sizes: Sequence[int],
    rank: int,
    world_size: int,
    batch_size: int,
    last_batch: str = "pad",
    order: Sequence[int] | None = None,
    repeats: bool = True,
) -> Share:
    """Return the share of one rank.

    Args:
        sizes: number of rows of each piece; the same on every rank.
        rank: the rank.
        world_size: number of ranks.
        batch_size: number of rows in a batch of one rank.
        last_batch: `pad` or `drop`.
        order: numbers of the pieces in reading order; by default 0, 1, 2, ...
        repeats: False leaves out the row that `pad` repeats. The rank may then have fewer steps
            than others.

    Example:
        >>> share([3, 0, 2], 1, 2, 2)
        Share(ranges=(Range(piece=0, start=2, stop=3), Range(piece=2, start=0, stop=2)), rows=5, \
padded=1, dropped=0, steps=2)
        >>> share([3, 0, 2], 0, 2, 2, "drop")
        Share(ranges=(Range(piece=0, start=0, stop=2),), rows=5, padded=0, dropped=1, steps=1)
    """
    order = range(len(sizes)) if order is None else order
    total = sum(sizes)
    steps, padded, dropped = totals(total, world_size, batch_size, last_batch)
    begin, end = total * rank // world_size, total * (rank + 1) // world_size
    if last_batch == "drop":
        return Share(
            _ranges(sizes, order, begin, begin + steps * batch_size), total, 0, dropped, steps
        )
    ranges = _ranges(sizes, order, begin, end)
    if not repeats:
        return Share(ranges, total, 0, 0, -(-(end - begin) // batch_size))
    if end - begin < -(-total // world_size):
        # Repeat the rank's own first row; a rank without rows takes the first row of all.
        first = begin if ranges else 0
        ranges += _ranges(sizes, order, first, first + 1)
    return Share(ranges, total, padded, 0, steps)


def totals(total: int, world_size: int, batch_size: int, last_batch: str) -> tuple[int, int, int]:
    """Return steps per rank, and the numbers of rows that all ranks repeat and leave out.

    Args:
        total: number of rows of all ranks together.
        world_size: number of ranks.
        batch_size: number of rows in a batch of one rank.
        last_batch: `pad` or `drop`.

    Example:
        >>> totals(1001, 3, 32, "pad"), totals(1001, 3, 32, "drop")
        ((11, 1, 0), (10, 0, 41))
    """
    if last_batch == "drop":
        steps = total // world_size // batch_size
        return steps, 0, total - steps * batch_size * world_size
    each = -(-total // world_size)
    return -(-each // batch_size), each * world_size - total, 0


def _ranges(sizes: Sequence[int], order: Sequence[int], begin: int, end: int) -> tuple[Range, ...]:
    """Return the ranges of rows `begin <= i < end`, counted over the pieces in `order`."""
    ranges, offset = [], 0
    for piece in order:
        start, stop = max(begin - offset, 0), min(end - offset, sizes[piece])
        if start < stop:
            ranges.append(Range(piece, start, stop))
        offset += sizes[piece]
    return tuple(ranges)


@dataclass(frozen=True)
class Transfer:
    """Rows `start <= i < stop` of one rank that are given to another rank.

    Attributes:
        giver: the rank that has the rows.
        taker: the rank that receives the rows; equal to `giver` for a repeated row.
        start: first row.
        stop: end of the rows (exclusive).
    """

    giver: int
    taker: int
    start: int
    stop: int


@dataclass(frozen=True)
class Balance:
    """A plan by which ranks with different numbers of rows come to equal numbers.

    Attributes:
        keeps: for each rank, the number of its first rows that it keeps.
        transfers: the rows that are given to other ranks; a row that its giver also keeps is
            repeated.
        each: number of rows of every rank afterwards, repeated rows included.
    """

    keeps: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    each: int

    def is_repeated(self, transfer: Transfer) -> bool:
        """Return True if the giver of the row keeps it, too."""
        return transfer.start < self.keeps[transfer.giver]


def balance(counts: Sequence[int], last_batch: str = "pad") -> Balance:
    """Return the plan that balances rows already dealt to ranks and moves as few as possible.

    Args:
        counts: number of rows that each rank holds.
        last_batch: `pad` raises every rank to the largest of the equal shares by repeating rows;
            `drop` lowers every rank to the smallest, and the rows above it stay unread.

    Example:
        >>> balance([4, 2, 3])
        Balance(keeps=(3, 2, 3), transfers=(Transfer(giver=0, taker=1, start=3, stop=4),), each=3)
        >>> balance([1, 0])  # The second rank repeats the only row.
        Balance(keeps=(1, 0), transfers=(Transfer(giver=0, taker=1, start=0, stop=1),), each=1)
    """
    least, larger = divmod(sum(counts), len(counts))
    by_count = sorted(range(len(counts)), key=lambda rank: (-counts[rank], rank))
    targets = [least] * len(counts)
    for rank in by_count[:larger]:
        targets[rank] += 1
    keeps = tuple(min(count, target) for count, target in zip(counts, targets, strict=True))
    transfers = _transfers(counts, targets)
    each = least + (1 if larger and last_batch == "pad" else 0)
    first = next((rank for rank in by_count if keeps[rank]), None)
    for rank, target in enumerate(targets):
        if target < each and first is not None:
            giver = rank if keeps[rank] else first
            transfers.append(Transfer(giver, rank, 0, 1))
    return Balance(keeps, tuple(transfers), each)


def _transfers(counts: Sequence[int], targets: Sequence[int]) -> list[Transfer]:
    surplus = [[rank, targets[rank]] for rank, count in enumerate(counts) if count > targets[rank]]
    transfers: list[Transfer] = []
    for taker, count in enumerate(counts):
        while count < targets[taker]:
            giver, start = surplus[0]
            stop = min(counts[giver], start + targets[taker] - count)
            transfers.append(Transfer(giver, taker, start, stop))
            count += stop - start
            surplus[0][1] = stop
            if stop == counts[giver]:
                surplus.pop(0)
    return transfers
