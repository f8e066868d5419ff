"""Runs anywhere (pure). One rule for who reads what, and how many steps everyone takes.

All rows stand in one line, piece after piece; each rank takes an equal stretch of it. Stretches
differ by at most one row. With `pad` the shorter ones repeat a row, so that every rank has batches
of the same sizes; with `drop` every rank leaves out what does not fill a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LAST_BATCH", "Balance", "Range", "Share", "Transfer", "balance", "share"]

LAST_BATCH = ("pad", "drop")


@dataclass(frozen=True)
class Range:
    """Rows `start <= i < stop` of one piece: a file, a row group."""

    piece: int
    start: int
    stop: int


@dataclass(frozen=True)
class Share:
    """What one rank reads in one pass.

    Attributes:
        ranges: its rows in order, with a repeated one at the end.
        rows, padded, dropped: rows of all ranks; how many of them are repeated, and left out.
        steps: how many batches each rank takes.
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
) -> Share:
    """The share of one rank.

    Args:
        sizes: rows of each piece; the same on every rank.
        rank, world_size: which rank of how many.
        batch_size: rows of a batch of one rank.
        last_batch: `pad` or `drop`.
        order: the pieces in the order to read them; by default as they are.

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
            _stretch(sizes, order, begin, begin + steps * batch_size), total, 0, dropped, steps
        )
    ranges = _stretch(sizes, order, begin, end)
    if end - begin < -(-total // world_size):
        # Its own first row again; a rank without rows takes the first of all.
        ranges += (
            _stretch(sizes, order, begin, begin + 1) if ranges else _stretch(sizes, order, 0, 1)
        )
    return Share(ranges, total, padded, 0, steps)


def totals(total: int, world_size: int, batch_size: int, last_batch: str) -> tuple[int, int, int]:
    """Steps of each rank, and rows that are repeated and left out by all, for so many rows.

    Example:
        >>> totals(1001, 3, 32, "pad"), totals(1001, 3, 32, "drop")
        ((11, 1, 0), (10, 0, 41))
    """
    if last_batch == "drop":
        steps = total // world_size // batch_size
        return steps, 0, total - steps * batch_size * world_size
    each = -(-total // world_size)
    return -(-each // batch_size), each * world_size - total, 0


def _stretch(sizes: Sequence[int], order: Sequence[int], begin: int, end: int) -> tuple[Range, ...]:
    """Rows `begin <= i < end` of all rows, counted in the order of the pieces."""
    ranges, before = [], 0
    for piece in order:
        start, stop = max(begin - before, 0), min(end - before, sizes[piece])
        if start < stop:
            ranges.append(Range(piece, start, stop))
        before += sizes[piece]
    return tuple(ranges)


@dataclass(frozen=True)
class Transfer:
    """Rows `start <= i < stop` of one rank that another rank takes, too or instead."""

    giver: int
    taker: int
    start: int
    stop: int


@dataclass(frozen=True)
class Balance:
    """How ranks that hold different numbers of rows come to hold equal ones.

    Attributes:
        keeps: of each rank, how many of its first rows it keeps.
        transfers: which rows change hands; a row that its giver keeps is a repeated one.
        each: how many rows every rank has then, repeated ones included.
    """

    keeps: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    each: int


def balance(counts: Sequence[int], last_batch: str = "pad") -> Balance:
    """Even out rows that have been dealt out already, moving as few as possible.

    Args:
        counts: rows that each rank holds.
        last_batch: with `pad` all get as many as the largest of equal shares, with `drop` as many
            as the smallest; the few rows above it stay unread.

    Example:
        >>> balance([4, 2, 3])
        Balance(keeps=(3, 2, 3), transfers=(Transfer(giver=0, taker=1, start=3, stop=4),), each=3)
        >>> balance([1, 0])  # The second rank repeats the only row.
        Balance(keeps=(1, 0), transfers=(Transfer(giver=0, taker=1, start=0, stop=1),), each=1)
    """
    least, larger = divmod(sum(counts), len(counts))
    by_count = sorted(range(len(counts)), key=lambda rank: (-counts[rank], rank))
    wanted = [least] * len(counts)
    for rank in by_count[:larger]:
        wanted[rank] += 1
    keeps = tuple(min(have, want) for have, want in zip(counts, wanted, strict=True))
    transfers = _moved(counts, wanted)
    each = least + (1 if larger and last_batch == "pad" else 0)
    first = next((rank for rank in by_count if keeps[rank]), None)
    for rank, want in enumerate(wanted):
        if want < each and first is not None:
            giver = rank if keeps[rank] else first
            transfers.append(Transfer(giver, rank, 0, 1))
    return Balance(keeps, tuple(transfers), each)


def _moved(counts: Sequence[int], wanted: Sequence[int]) -> list[Transfer]:
    over = [[rank, wanted[rank]] for rank, have in enumerate(counts) if have > wanted[rank]]
    moved: list[Transfer] = []
    for taker, have in enumerate(counts):
        while have < wanted[taker]:
            giver, start = over[0]
            stop = min(counts[giver], start + wanted[taker] - have)
            moved.append(Transfer(giver, taker, start, stop))
            have += stop - start
            over[0][1] = stop
            if stop == counts[giver]:
                over.pop(0)
    return moved
