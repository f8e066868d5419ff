"""Several hosts with several ranks each: arrays are reduced within the hosts first."""

import json
import socket
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sparkdl.distribute import pieces, stride_links
from sparkdl.distribute.links import Links
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.rows import row_slices
from sparkdl.distribute.stride_plan import longest_in_rounds
from sparkdl.distribute.timed_links import TimedLinks, start_recording, stop_recording
from sparkdl.errors import PeerLostError
from tests.helpers.joined_rings import Gangs
from tests.helpers.rings import on_all

# Of an array of 300 000 bytes: one piece on each of the hosts, some, and the most that there are.
PIECES = [1 << 20, 1 << 17, 1 << 10]
NODES = ["aabb", "abab", "aabbcc", "aaabbb", "aabbccdd"]
# tcpi_bytes_received of struct tcp_info, see linux/tcp.h.
BYTES_RECEIVED_AT = 128


@pytest.fixture(params=PIECES)
def piece_bytes(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", request.param)


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 15)


def drawn(rank: int, length: int, dtype: str = "f4") -> Any:
    values = np.random.default_rng([rank, length]).normal(scale=40, size=length)
    return values.astype(getattr(ml_dtypes, dtype, dtype))


def test_hosts_with_as_many_ranks_each_reduce_all_arrays_in_rounds() -> None:
    assert longest_in_rounds("aabb") == longest_in_rounds("abab") > 1 << 40
    assert longest_in_rounds("aab") == longest_in_rounds("ab") == longest_in_rounds("aa") == 0
    assert longest_in_rounds("aaabb" * 4) == longest_in_rounds("abcdefgh") == 1 << 18


@pytest.mark.parametrize("nodes", NODES)
def test_results_are_those_of_numpy_and_have_equal_bits(
    gangs: Gangs, nodes: str, piece_bytes: None
) -> None:
    size = len(nodes)
    cases = [
        (dtype, length, op)
        for dtype in ("f4", "i4", "bfloat16")
        for length in (75_001, 9_000)
        for op in ("mean", "sum", "min")
    ]

    def call(ring: Ring, rank: int) -> list[Any]:
        found = []
        for dtype, length, op in cases:
            array = drawn(rank, length, dtype)
            before = array.tobytes()
            found.append(ring.allreduce(array, op))
            assert array.tobytes() == before
            ring.allreduce(array, op, array)  # In place.
            np.testing.assert_array_equal(array, found[-1])
        return found

    rings = gangs.ring(nodes)
    results = on_all(rings, call)
    assert all(isinstance(result, list) for result in results), results
    for number, (dtype, length, op) in enumerate(cases):
        whole = [result[number] for result in results]
        assert len({one.tobytes() for one in whole}) == 1, (dtype, length, op)
        rows = np.stack([drawn(rank, length, dtype) for rank in range(size)]).astype("f8")
        wanted = {"mean": np.mean, "sum": np.sum, "min": np.min}[op](rows, axis=0)
        if dtype == "i4":
            wanted = np.floor(wanted)
        epsilon = 0 if dtype == "i4" else float(ml_dtypes.finfo(whole[0].dtype).eps)
        tolerance = {"rtol": 0, "atol": size * epsilon * 200}
        np.testing.assert_allclose(whole[0].astype("f8"), wanted, **tolerance)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("has_strides", [True, False])
def test_gathered_parts_have_the_bits_of_allreduce(
    gangs: Gangs,
    nodes: str,
    has_strides: bool,
    piece_bytes: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the ring has to serve, because connections cannot be opened."""
    if not has_strides:
        monkeypatch.setattr(stride_links, "_listen", lambda *arguments: [])
    lengths = [7, 9_000, 75_001]

    def reduce_and_gather(ring: Ring, rank: int) -> Any:
        found = []
        for length in lengths:
            array, whole = drawn(rank, length), np.full(length, np.nan, "f4")
            part = ring.reduce_part(array, "mean", np.empty(length, "f4"))
            whole[ring.part_of(length)] = part
            ring.gather_parts(whole, row_slices(length, ring.size))
            found += [whole.tobytes(), ring.allreduce(array).tobytes()]
        return found

    rings = gangs.ring(nodes)
    results = on_all(rings, reduce_and_gather)
    assert all(result == results[0] for result in results), results
    assert results[0][::2] == results[0][1::2]
    assert all((ring._strides is not None) == has_strides for ring in rings)


@pytest.mark.parametrize("nodes", ["aabb", "aaaabbbb", "aabbcc"])
def test_as_few_bytes_as_possible_travel_between_hosts(
    gangs: Gangs, nodes: str, in_pieces: None
) -> None:
    """The kernel counts them; 2 (H - 1) / H of an array for each of H hosts is the least."""
    rings, array = gangs.ring(nodes), np.zeros(300_000, "f4")
    assert not any(on_all(rings, lambda ring, rank: ring.allreduce(array).any()))
    before = sum(map(received_bytes, rings))
    assert not any(on_all(rings, lambda ring, rank: ring.allreduce(array).any()))
    num_hosts = len(set(nodes))
    least = 2 * (num_hosts - 1) * array.nbytes
    assert least <= sum(map(received_bytes, rings)) - before < 1.05 * least


def received_bytes(ring: Ring) -> int:
    """Return the bytes that have come over TCP, and so from other hosts."""
    connections = [links._predecessor.socket for links in ring._all_links()]
    return sum(
        struct.unpack_from("Q", one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), at)[0]
        for one in connections
        if one.family != socket.AF_UNIX
        for at in [BYTES_RECEIVED_AT]
    )


def test_long_blocks_within_a_host_go_through_shared_memory(gangs: Gangs) -> None:
    rings = gangs.ring("aaabbb")
    on_all(rings, lambda ring, rank: ring.allreduce(np.zeros(9_000)))
    for ring in rings:
        assert ring._strides
        shared = [links._successor.slots is not None for links in ring._strides.links]
        assert shared == [True, True, False]


@pytest.mark.parametrize("leaver", range(4))
def test_a_rank_that_leaves_is_noticed_by_all(gangs: Gangs, leaver: int, in_pieces: None) -> None:
    """In the middle of a call, also by ranks that wait for it in a thread of their own."""
    rings = gangs.ring("aabb")
    on_all(rings, lambda ring, rank: ring.allreduce(np.zeros(9_000)))
    others = [rank for rank in range(4) if rank != leaver]
    assert rings[leaver]._strides
    (*_, crossing) = rings[leaver]._strides.links
    exchanges = iter(range(3))

    def exchange(*arguments: Any, **options: Any) -> None:
        if next(exchanges, None) is None:
            crossing.close()
        Links.exchange(crossing, *arguments, **options)

    crossing.exchange = exchange  # type: ignore[method-assign]
    errors = on_all(rings, lambda ring, rank: ring.allreduce(np.zeros(100_000)))
    assert all(isinstance(error, Exception) for error in errors)
    assert all(isinstance(errors[rank], PeerLostError) for rank in others), errors


def test_a_rank_that_shows_no_life_is_noticed_after_the_timeout(
    gangs: Gangs, in_pieces: None
) -> None:
    rings = gangs.ring("aabb", timeout_s=1.0)
    on_all(rings, lambda ring, rank: ring.allreduce(np.zeros(9_000)))
    for links in rings[2]._all_links():
        links._heartbeat._is_over.set()
    arrays = np.zeros(100_000)
    errors = on_all(rings, lambda ring, rank: None if rank == 2 else ring.allreduce(arrays))
    assert all(isinstance(errors[rank], PeerLostError) for rank in (0, 1, 3)), errors
    assert any("rank 2 hangs and shows no life" in str(error) for error in errors)


CALLS: dict[str, Any] = {
    "broadcast": lambda ring: ring.broadcast(np.zeros(100_000)),
    "longer": lambda ring: ring.allreduce(np.zeros(100_001)),
    "short": lambda ring: ring.allreduce(np.zeros(3)),
    "part": lambda ring: ring.reduce_part(np.zeros(100_000), "mean", np.zeros(100_000)),
    "vote": lambda ring: ring.vote(1),
}


@pytest.mark.parametrize("other", CALLS)
@pytest.mark.parametrize("split", [[1], [2, 3]])
def test_ranks_with_different_calls_get_an_error(
    gangs: Gangs, other: str, split: list[int], in_pieces: None
) -> None:
    rings = gangs.ring("aabb", timeout_s=4.0)
    on_all(rings, lambda ring, rank: ring.allreduce(np.zeros(9_000)))

    def call(ring: Ring, rank: int) -> Any:
        return CALLS[other](ring) if rank in split else ring.allreduce(np.zeros(100_000))

    errors = on_all(rings, call)
    assert all(isinstance(error, RuntimeError | PeerLostError) for error in errors), errors
    assert any("do not call the same collectives" in str(error) for error in errors), errors


def test_parts_are_not_taken_for_those_of_reduce_scatter(gangs: Gangs, in_pieces: None) -> None:
    """Of an equal array, those of `reduce_scatter` travel around the ring."""
    rings = gangs.ring("aabb", timeout_s=4.0)
    array = np.zeros(100_000)

    def call(ring: Ring, rank: int) -> Any:
        if rank == 0:
            return ring.reduce_scatter(array)
        return ring.reduce_part(array, "mean", np.zeros(100_000))

    errors = on_all(rings, call)
    assert all(isinstance(error, RuntimeError | PeerLostError) for error in errors), errors
    assert any("do not call the same collectives" in str(error) for error in errors), errors


def test_the_timeline_of_a_call_has_no_time_twice(
    gangs: Gangs, tmp_path: Path, in_pieces: None
) -> None:
    rings, array = gangs.ring("aabb"), np.zeros(100_000)
    on_all(rings, lambda ring, rank: ring.allreduce(array))
    for rank, ring in enumerate(rings):
        start_recording(ring, str(tmp_path / f"{rank}.json"))
    on_all(rings, lambda ring, rank: ring.allreduce(array))
    for ring in rings:
        stop_recording(ring)
    for rank in range(4):
        events = json.loads((tmp_path / f"{rank}.json").read_text().rstrip(",\n") + "]")
        bars = [event for event in events if event.get("cat") == "collective"]
        # Eight pieces are reduced within the host, and gathered.
        assert [bar["args"]["waits_for"] for bar in bars] == [rank ^ 1] * 16
        ends = [bar["ts"] + bar["dur"] for bar in bars]
        assert all(bar["ts"] >= end for end, bar in zip(ends, bars[1:], strict=False))


def test_a_timeline_needs_no_more_memory_for_more_calls(
    gangs: Gangs, tmp_path: Path, in_pieces: None
) -> None:
    rings, array = gangs.ring("aabb"), np.zeros(100_000)
    on_all(rings, lambda ring, rank: ring.allreduce(array))
    start_recording(rings[0], str(tmp_path / "0.json"))
    for _ in range(5):
        on_all(rings, lambda ring, rank: ring.allreduce(array))
    assert rings[0]._strides
    (*_, crossing) = rings[0]._strides.links
    assert isinstance(crossing, TimedLinks)
    stop_recording(rings[0])
    # Of the last piece; each of the 40 pieces has a header and two blocks at least.
    assert 0 < sum(kind == "receive" for kind, *_ in crossing._pieces) < 100
