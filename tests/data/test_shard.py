"""The rule of who reads what: for any sizes, ranks and batches, every row once and equal steps."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.data.shard import LAST_BATCH, Range, balance, share
from sparkdl.data.shard import totals as totals_of

Row = tuple[int, int]

SIZES = st.lists(st.integers(0, 12), max_size=12)
WORLDS = st.integers(1, 7)
BATCHES = st.integers(1, 6)
POLICIES = st.sampled_from(LAST_BATCH)


def rows_in(ranges: tuple[Range, ...]) -> list[Row]:
    return [(r.piece, i) for r in ranges for i in range(r.start, r.stop)]


@st.composite
def orders(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Sizes, and an order of the pieces."""
    sizes = draw(SIZES)
    return sizes, draw(st.permutations(range(len(sizes))))


@given(orders(), WORLDS, BATCHES, POLICIES)
def test_every_row_once_and_equal_steps(
    ordered: tuple[list[int], list[int]], world_size: int, batch_size: int, last_batch: str
) -> None:
    sizes, order = ordered
    every = [(piece, i) for piece in order for i in range(sizes[piece])]
    shares = [
        share(sizes, rank, world_size, batch_size, last_batch, order) for rank in range(world_size)
    ]
    told = {(s.rows, s.padded, s.dropped, s.steps) for s in shares}
    assert len(told) == 1  # All ranks say the same of all.
    ((total, padded, dropped, steps),) = told
    given_out = [rows_in(s.ranges) for s in shares]
    counts = Counter(itertools.chain.from_iterable(given_out))

    assert total == len(every) == sum(sizes)
    assert len({len(rows) for rows in given_out}) == 1
    assert {-(-len(rows) // batch_size) for rows in given_out} == {steps}
    assert sum(counts.values()) == total + padded - dropped
    if last_batch == "pad":
        assert set(counts) == set(every) and dropped == 0
        assert padded < world_size
    else:
        assert set(counts.values()) <= {1} and padded == 0
        assert dropped < world_size * batch_size
        assert {len(rows) for rows in given_out} == {steps * batch_size}


@given(orders(), WORLDS, BATCHES)
def test_ranks_stand_in_line(
    ordered: tuple[list[int], list[int]], world_size: int, batch_size: int
) -> None:
    """Without the repeated rows, the ranks one after the other read all rows in their order."""
    sizes, order = ordered
    every = [(piece, i) for piece in order for i in range(sizes[piece])]
    line: list[Row] = []
    for rank in range(world_size):
        rows = rows_in(share(sizes, rank, world_size, batch_size, "pad", order).ranges)
        repeats = len(rows) - (len(every) * (rank + 1) // world_size - len(line))
        assert repeats in (0, 1)
        assert not repeats or rows[-1] == rows[0]
        line += rows[: len(rows) - repeats]
    assert line == every


@given(orders(), WORLDS, BATCHES, POLICIES)
def test_ranges_are_rows_that_exist(
    ordered: tuple[list[int], list[int]], world_size: int, batch_size: int, last_batch: str
) -> None:
    sizes, order = ordered
    for rank in range(world_size):
        for one in share(sizes, rank, world_size, batch_size, last_batch, order).ranges:
            assert 0 <= one.start < one.stop <= sizes[one.piece]


@given(st.integers(0, 10**12), st.integers(1, 4096), st.integers(1, 10**6), POLICIES)
def test_totals_add_up_at_any_size(
    total: int, world_size: int, batch_size: int, last_batch: str
) -> None:
    steps, padded, dropped = totals_of(total, world_size, batch_size, last_batch)
    used = total + padded - dropped
    assert used % world_size == 0
    assert steps == -(-(used // world_size) // batch_size)
    assert 0 <= padded < world_size and 0 <= dropped < world_size * batch_size


@pytest.mark.parametrize("last_batch", LAST_BATCH)
def test_a_long_line_is_shared_at_once(last_batch: str) -> None:
    """Sizes are looked at piece by piece, never row by row."""
    sizes = [10**9] * 1000
    mine = share(sizes, 511, 1024, 4096, last_batch)
    assert sum(r.stop - r.start for r in mine.ranges) == pytest.approx(10**12 / 1024, rel=1e-4)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), POLICIES)
def test_balance_evens_out_and_moves_few(counts: list[int], last_batch: str) -> None:
    done = balance(counts, last_batch)
    held = [Counter((rank, i) for i in range(keep)) for rank, keep in enumerate(done.keeps)]
    moved = 0
    for transfer in done.transfers:
        assert 0 <= transfer.start < transfer.stop <= counts[transfer.giver]
        rows = [(transfer.giver, i) for i in range(transfer.start, transfer.stop)]
        moved += sum(i >= done.keeps[transfer.giver] for _, i in rows)
        held[transfer.taker].update(rows)
    all_of_them = sum(held, Counter())
    every = {(rank, i) for rank, count in enumerate(counts) for i in range(count)}

    least, larger = divmod(sum(counts), len(counts))
    assert done.each == least + (1 if larger and last_batch == "pad" else 0)
    assert set(all_of_them) == every  # Nothing is lost; with drop the rest stays unread.
    if last_batch == "pad":
        assert {rows.total() for rows in held} == {done.each}
        assert all_of_them.total() - len(every) < len(counts)
    else:
        assert all(rows.total() >= done.each for rows in held)
        assert set(all_of_them.values()) <= {1}
    # No plan moves fewer: these ranks have to give away what they have above their part.
    wanted = sorted([least + 1] * larger + [least] * (len(counts) - larger), reverse=True)
    assert moved == sum(
        max(have - want, 0) for have, want in zip(sorted(counts, reverse=True), wanted, strict=True)
    )


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), POLICIES)
def test_balance_of_equal_counts_moves_nothing(counts: list[int], last_batch: str) -> None:
    equal = [counts[0]] * len(counts)
    assert balance(equal, last_batch).transfers == ()
    assert balance(equal, last_batch).keeps == tuple(equal)
