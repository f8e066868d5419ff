"""The order of shuffled rows: the same for any number of ranks, and another in each epoch."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.context import Context
from sparkdl.data.batching import Batches, passes
from sparkdl.data.lanes import MAX_LANES, WINDOW_BYTES, EpochOrder, Lane, Pass
from sparkdl.data.shard import Range
from sparkdl.data.shuffle import shuffled

EVEN = [200] * 128
UNEVEN = [7, 0, 500, 12_000, 1, 333, 6_400, 2] * 2


def lanes_of(
    sizes: Sequence[int], world_size: int, num_passes: int = 1, **options: Any
) -> list[list[tuple[Lane, ...]]]:
    """The lanes of all ranks in several passes: `[pass][rank]`."""
    elastic = options.pop("is_elastic", False)
    batches = Batches.parse({"global_batch_size": 12 * world_size, "shuffle": 1 << 14, **options})
    found = []
    for rank in range(world_size):
        me = Context(rank=rank, world_size=world_size, num_readers=world_size, data_seed=4)
        next_pass = passes(sizes, batches, dataclasses.replace(me, is_elastic=elastic)).next
        found.append([next_pass().lanes for _ in range(num_passes)])
    return [list(ranks) for ranks in zip(*found, strict=True)]


def rows(lanes: Sequence[Lane]) -> list[tuple[int, int]]:
    return [(r.piece, i) for lane in lanes for r in lane.ranges for i in range(r.start, r.stop)]


def test_ranges_are_asked_for_in_the_order_of_their_beginnings_up_to_the_stop() -> None:
    long = Lane(tuple(Range(piece, 0, 10) for piece in range(4)), seed=0)
    short = Lane(tuple(Range(piece, 0, 5) for piece in range(10, 18)), seed=1)
    whole = Pass((long, short), chunk_rows=10)

    def pieces(some: Pass) -> list[int]:
        return [part.piece for part in some.ranges_to_read()]

    assert pieces(whole) == [0, 10, 11, 1, 12, 13, 2, 14, 15, 3, 16, 17]
    # A window has 20 rows.
    rest = dataclasses.replace(whole, start=30, stop=60).from_first_window(8.0)
    assert pieces(rest) == [1, 12, 13, 2, 14, 15]
    after = dataclasses.replace(whole, stop=20, following=rest)
    assert pieces(after) == [0, 10, 11, 1, 12, 13, 2, 14, 15]


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_any_number_of_ranks_divides_the_same_sequence(
    sizes: Sequence[int], world_size: int
) -> None:
    # A multiple of the ranks, so that no row is repeated.
    sizes = [*sizes, -sum(sizes) % 42]
    [[alone]], [ranks] = lanes_of(sizes, 1), lanes_of(sizes, world_size)
    whole = rows(alone)
    assert Counter(whole) == {(piece, i): 1 for piece, n in enumerate(sizes) for i in range(n)}
    assert Counter(row for lanes in ranks for row in rows(lanes)) == Counter(whole)
    # A rank cuts a lane at each of its ends, at most; the others are read in the same order.
    assert sum(lane in alone for lanes in ranks for lane in lanes) >= len(alone) - world_size


def test_batches_of_all_ranks_have_the_same_rows_for_any_number_of_ranks() -> None:
    def global_batches(world_size: int) -> list[list[int]]:
        [ranks] = lanes_of(EVEN, world_size)
        orders = []
        for lanes in ranks:
            read = [(iter([ids_of(lane)]), lane.seed or 0) for lane in lanes]
            mixed = shuffled(read, 128, WINDOW_BYTES)
            orders.append([i for batch in mixed for i in batch["id"].to_pylist()])
        size = 128 // world_size
        steps = [zip(*[iter(order)] * size, strict=True) for order in orders]
        return [sorted(itertools.chain(*step)) for step in zip(*steps, strict=True)]

    assert global_batches(1) == global_batches(2) == global_batches(4) == global_batches(16)


def ids_of(lane: Lane) -> pa.RecordBatch:
    return pa.record_batch({"id": [200 * piece + i for piece, i in rows([lane])]})


def test_lanes_that_end_with_a_piece_are_never_cut_elsewhere() -> None:
    [[alone]] = lanes_of(EVEN, 1)
    assert len(alone) == MAX_LANES
    assert all((r.start, r.stop) == (0, 200) for lane in alone for r in lane.ranges)
    [ranks] = lanes_of(EVEN, 4)
    assert [lane for lanes in ranks for lane in lanes] == list(alone)


def test_each_epoch_deals_out_the_rows_anew() -> None:
    first, second = lanes_of(EVEN, 4, 2)
    shared = [set(rows(a)) & set(rows(b)) for a, b in zip(first, second, strict=True)]
    for both, lanes in zip(shared, first, strict=True):
        assert 0.05 < len(both) / len(rows(lanes)) < 0.6, "a rank sees other rows"
    assert lanes_of(EVEN, 4, 2) == [first, second]


def test_each_epoch_leaves_out_other_rows() -> None:
    left_out = []
    for ranks in lanes_of([10] * 10, 3, 3, last_batch="drop"):
        seen = [row for lanes in ranks for row in rows(lanes)]
        assert len(seen) == len(set(seen)) == 72
        left_out.append({(p, i) for p in range(10) for i in range(10)} - set(seen))
    assert left_out[0] != left_out[1] != left_out[2]


def test_an_elastic_gang_keeps_its_division() -> None:
    """The passes of a rank that replaces a lost one begin again, while others are further on."""
    first, second = lanes_of(EVEN, 4, 2, is_elastic=True)
    assert [set(rows(lanes)) for lanes in first] == [set(rows(lanes)) for lanes in second]
    assert first != second, "the order within a rank differs"


def test_the_number_of_rows_gives_the_length_of_a_chunk() -> None:
    me = Context()
    for shuffle, chunk_rows in (
        (True, 25_600),
        (128_000, 25_600),
        (1 << 14, 128),
        (6400, 80),
        (640, 25),
        (2, 2),
    ):
        batches = Batches.parse({"global_batch_size": 1, "shuffle": shuffle})
        assert passes(EVEN, batches, me).next().chunk_rows == chunk_rows
    [[few]] = lanes_of([40], 1)
    assert len(few) == 1, "few rows are shuffled as a whole"


def orders_of(num_rows: int, shuffle: int) -> list[list[int]]:
    """The order of the rows of one piece in two passes."""
    batches = Batches.parse({"global_batch_size": 1, "shuffle": shuffle})
    next_pass = passes([num_rows], batches, Context(data_seed=4)).next
    orders = []
    for current in (next_pass(), next_pass()):
        read = [
            (iter([pa.record_batch({"id": [i for _, i in rows([lane])]})]), lane.seed or 0)
            for lane in current.lanes
        ]
        mixed = shuffled(read, current.chunk_rows, current.chunk_bytes)
        orders.append([i for batch in mixed for i in batch["id"].to_pylist()])
    return orders


@pytest.mark.parametrize("num_rows", [2, 1024, 1100, 2047, 10_000])
def test_all_rows_of_a_window_are_mixed(num_rows: int) -> None:
    first, second = orders_of(num_rows, True)
    assert sorted(first) == sorted(second) == list(range(num_rows))
    if num_rows > 1000:
        half = [i < num_rows // 2 for i in first[: num_rows // 2]]
        assert 0.4 < sum(half) / len(half) < 0.6


@pytest.mark.parametrize("shuffle", [2, 50, 100, 127])
def test_a_small_window_shuffles_a_single_piece(shuffle: int) -> None:
    first, second = orders_of(1000, shuffle)
    assert sorted(first) == sorted(second) == list(range(1000))
    assert list(range(1000)) != first != second


def test_one_is_true() -> None:
    assert orders_of(1000, 1) == orders_of(1000, True)


def test_rows_that_are_left_out_are_the_first_of_the_lane() -> None:
    lane = Lane((Range(0, 0, 10), Range(1, 5, 12), Range(2, 0, 3)), seed=3)

    def in_sections(some: Lane) -> list[tuple[int, int]]:
        sections = some.sections(4)
        return [(part.piece, i) for part in sections for i in range(part.start, part.stop)]

    whole = in_sections(lane)
    assert sorted(whole) == sorted(rows([lane]))
    for num_rows in range(len(whole) + 1):
        assert in_sections(lane.after(num_rows)) == whole[num_rows:]


def test_lanes_end_with_a_piece_only_if_they_stay_about_equal() -> None:
    def cuts(*sizes: int) -> list[int]:
        return EpochOrder(sizes, seed=[0], window_rows=4).cuts

    assert cuts(40) == [0, 20, 40]
    assert {cuts(*sizes)[1] for sizes in ((18, 22), (22, 18))} == {18, 22}
    assert cuts(10, 30)[1] == cuts(30, 10)[1] == 20


def test_lanes_share_the_memory_of_a_window() -> None:
    order = EpochOrder([40], seed=[0], window_rows=9)
    whole = order.shuffled_pass([Range(0, 0, 40)], 0, [0])
    assert len(whole.lanes) == 3
    assert len(whole.lanes) * whole.chunk_bytes <= WINDOW_BYTES < 4 * whole.chunk_bytes


@given(
    st.lists(st.lists(st.integers(1, 6), max_size=4), min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(0, 30),
)
def test_windows_that_are_left_out_have_only_rows_before_the_first(
    sizes: list[list[int]], chunk_rows: int, start: int
) -> None:
    lanes, piece = [], 0
    for number, lengths in enumerate(sizes):
        ranges = tuple(Range(piece + i, 0, length) for i, length in enumerate(lengths))
        lanes.append(Lane(ranges, seed=number))
        piece += len(lengths)
    totals = [sum(lengths) for lengths in sizes]
    start = min(start, sum(totals))
    rest = Pass(tuple(lanes), chunk_rows, start=start).without_windows()
    left_out = start - rest.start
    # The rows of whole windows: of each lane as many chunks, as far as it has rows.
    windows = [sum(min(t, w * chunk_rows) for t in totals) for w in range(max(totals) + 1)]
    assert left_out == max(rows for rows in windows if rows <= start)
    assert sum(lane.num_rows for lane in rest.lanes) == sum(totals) - left_out
