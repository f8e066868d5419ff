"""Collectives in rounds: a thread for each rank, real connections, the same ones for many calls."""

import functools
import itertools
import json
import math
import socket
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sparkdl.distribute import ring_calls, stride_links
from sparkdl.distribute.links import Links
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.stride_plan import SHORT_BYTES, longest_in_rounds, plan_strides
from sparkdl.distribute.strides import GATHERED_BYTES
from sparkdl.distribute.timed_links import start_recording, stop_recording
from sparkdl.errors import PeerLostError
from tests.helpers.joined_rings import Gangs
from tests.helpers.rings import on_all

LONGEST = 1 << 20


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the further connections at the first call, of few ranks of one host too."""
    monkeypatch.setattr(ring_calls, "NUM_CALLS_BEFORE_STRIDES", 0)
    monkeypatch.setattr(ring_calls, "longest_in_rounds", lambda nodes: LONGEST * (len(nodes) >= 4))


@pytest.mark.parametrize("size", range(2, 40))
def test_a_value_reaches_each_rank_from_each_other_once(size: int) -> None:
    """Rounds of sends by the strides, played without any connections."""
    for num_hosts in (n for n in range(1, size + 1) if size % n == 0):
        nodes = [chr(97 + host) for host in range(num_hosts) for _ in range(size // num_hosts)]
        order, strides, num_local = plan_strides(nodes)
        assert sorted(order) == list(range(size))
        assert len(strides) <= math.ceil(math.log2(size)) + 1
        known = [[place] for place in range(size)]
        for stride, bound in itertools.pairwise([*reversed(strides), size]):
            known = [own + known[at - stride][: bound - stride] for at, own in enumerate(known)]
        assert all(sorted(own) == list(range(size)) for own in known)
        # Long strides lead to ranks of the same host.
        if num_hosts > 1:
            assert num_local == sum(stride >= num_hosts for stride in strides)
        for stride in (stride for stride in strides if stride >= num_hosts):
            ends = [(nodes[order[at]], nodes[order[at - stride]]) for at in range(size)]
            assert all(mine == theirs for mine, theirs in ends)


def test_hosts_with_different_numbers_of_ranks_keep_the_order_of_the_ring() -> None:
    assert plan_strides("aab") == ([0, 1, 2], [2, 1], 0)


def test_more_ranks_and_hosts_reduce_longer_arrays_in_rounds() -> None:
    for num_hosts in (1, 2):
        longest = [longest_in_rounds("ab"[:num_hosts] * n) for n in range(1, 40)]
        assert longest == sorted(longest)
        assert longest[0] == 0 < longest[-1]
    assert all(longest_in_rounds("ab" * n) >= longest_in_rounds("aa" * n) for n in range(1, 20))


DTYPES = [np.dtype(name) for name in ("f4", "f8", "f2", "i8", "u1")] + [
    np.dtype(ml_dtypes.bfloat16)
]
NODES = ["a", "ab", "aba", "aabb", "aaaaa", "abcabcc", "abcdabcd"]


def lengths(size: int, itemsize: int) -> list[int]:
    """Return numbers of items on both sides of each switch, and some that ranks share unequally."""
    switches = (min(SHORT_BYTES, GATHERED_BYTES // size), 40_000)
    return [0, 1, size + 1, *(n // itemsize + more for n in switches for more in (0, 1))]


@functools.cache
def drawn(dtype: Any, rank: int, length: int) -> Any:
    return np.random.default_rng([rank, length]).integers(0, 20, length).astype(dtype)


def expected(dtype: Any, size: int, length: int, op: str) -> Any:
    """Return the reduction in float64, or in integers of Python's size."""
    wide = "f8" if dtype.kind != "i" and dtype.kind != "u" else "i8"
    rows = np.stack([drawn(dtype, rank, length).astype(wide) for rank in range(size)])
    if op == "mean":
        return rows.sum(axis=0) // size if wide == "i8" else rows.mean(axis=0)
    return {"sum": np.sum, "min": np.min, "max": np.max}[op](rows, axis=0)


@pytest.mark.parametrize("nodes", NODES)
def test_results_are_those_of_numpy_and_have_equal_bits(gangs: Gangs, nodes: str) -> None:
    size = len(nodes)
    cases = [
        (dtype, length, op)
        for dtype in DTYPES
        for op in ("mean", "sum", "max")
        for length in lengths(size, dtype.itemsize)
    ]

    def call(ring: Ring, rank: int) -> list[Any]:
        return [ring.allreduce(drawn(dtype, rank, length), op) for dtype, length, op in cases]

    rings = gangs.ring(nodes)
    results = on_all(rings, call)
    assert all(isinstance(result, list) for result in results), results
    assert all((ring._strides is not None) == (size >= 4) for ring in rings)
    for number, (dtype, length, op) in enumerate(cases):
        whole = [result[number] for result in results]
        assert len({one.tobytes() for one in whole}) == 1, (dtype, length, op)
        wanted = expected(dtype, size, length, op)
        if dtype.kind in "iu":
            wanted = wanted.astype(dtype)  # A sum wraps around.
        epsilon = 0 if dtype.kind in "iu" else float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(whole[0].astype("f8"), wanted, rtol=4 * size * epsilon)


def test_bits_do_not_depend_on_the_time_of_a_call(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that is continued opens its connections at another step."""
    monkeypatch.setattr(ring_calls, "NUM_CALLS_BEFORE_STRIDES", 3)
    values = [np.random.default_rng(rank).normal(size=8_000).astype("f4") for rank in range(5)]

    def call(ring: Ring, rank: int) -> list[Any]:
        out = np.zeros(8_000, "f4")
        found = []
        for _ in range(4):
            for part in (values[rank][:5], values[rank]):
                found.append(ring.allreduce(part).tobytes())
                assert ring.vote(2, part, "mean", out[: part.size]) == 2
                found.append(out[: part.size].tobytes())
        return found

    (result, *others) = on_all(gangs.ring("aaaaa"), call)
    assert all(other == result for other in others)
    assert len(set(result)) == 2


def test_votes_records_and_objects_of_all_ranks(gangs: Gangs) -> None:
    votes = [2, 2, 1, 2, 2, 2]

    def call(ring: Ring, rank: int) -> Any:
        out = np.zeros(30_000)
        low = ring.vote(votes[rank], *([np.ones(2), "sum", out[:2]] if votes[rank] == 2 else []))
        both = [ring.vote(2, np.full(n, 1.0 + rank), "sum", out[:n]) for n in (3, 30_000)]
        return [
            low,
            both,
            out[:3].tolist(),
            float(out.min()),
            ring.allgather_record(bytes([rank, 9])),
            ring.allgather_object({"rank": rank, "text": "x" * rank}),
        ]

    records = [bytes([rank, 9]) for rank in range(6)]
    objects = [{"rank": rank, "text": "x" * rank} for rank in range(6)]
    wanted = [1, [2, 2], [21.0] * 3, 21.0, records, objects]
    rings = gangs.ring("abcabc")
    assert on_all(rings, call) == [wanted] * 6
    assert all(ring._strides for ring in rings)


def opened(gangs: Gangs, nodes: str, **options: Any) -> list[Ring]:
    return opened_on(gangs.ring(nodes, **options))


def opened_on(rings: list[Ring]) -> list[Ring]:
    assert on_all(rings, lambda ring, rank: ring.barrier()) == [None] * len(rings)
    assert all(ring._strides for ring in rings)
    return rings


@pytest.mark.parametrize("length", [3, 100_000])
def test_a_rank_that_leaves_is_noticed_by_all(gangs: Gangs, length: int) -> None:
    def call(ring: Ring, rank: int) -> Any:
        return ring.close() if rank == 2 else ring.allreduce(np.zeros(length, "f4"))

    errors = on_all(opened(gangs, "aabbb"), call)
    assert all(isinstance(errors[rank], PeerLostError) for rank in (0, 1, 3, 4)), errors
    assert any("lost connection to rank 2: " in str(error) for error in errors)


def test_a_rank_that_shows_no_life_is_noticed_after_the_timeout(gangs: Gangs) -> None:
    rings = opened(gangs, "aaaaa", timeout_s=1.0)
    for links in rings[2]._all_links():
        links._heartbeat._is_over.set()
    errors = on_all(rings, lambda ring, rank: None if rank == 2 else ring.barrier())
    assert all(isinstance(errors[rank], PeerLostError) for rank in (0, 1, 3, 4)), errors
    assert any("rank 2 hangs and shows no life" in str(error) for error in errors)


def broadcast(ring: Ring) -> Any:
    return ring.broadcast(np.zeros(3))


CALLS = {
    "broadcast": broadcast,
    "long": lambda ring: ring.allreduce(np.zeros(LONGEST // 8 + 1)),
    "medium": lambda ring: ring.allreduce(np.zeros(30_000)),
    "other": lambda ring: ring.allreduce(np.zeros(4), "sum"),
    "vote": lambda ring: ring.vote(1),
}


@pytest.mark.parametrize("other", CALLS)
def test_ranks_with_different_calls_get_an_error(gangs: Gangs, other: str) -> None:
    """They may wait for each other on different connections."""

    def call(ring: Ring, rank: int) -> Any:
        return ring.allreduce(np.zeros(3)) if rank % 2 else CALLS[other](ring)

    errors = on_all(opened(gangs, "aaaa", timeout_s=4.0), call)
    assert all(isinstance(error, RuntimeError | PeerLostError) for error in errors), errors
    assert any("do not call the same collectives" in str(error) for error in errors)


def test_different_calls_are_noticed_before_connections_are_opened(gangs: Gangs) -> None:
    def call(ring: Ring, rank: int) -> Any:
        return ring.allreduce(np.zeros(3)) if rank else broadcast(ring)

    errors = on_all(gangs.ring("aaaa"), call)
    assert any("(mean) of float64 (3,), 24 bytes" in str(error) for error in errors), errors


def test_the_ring_serves_if_a_rank_has_no_further_connections(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create, first = socket.create_server, threading.Lock()

    def create_server(*arguments: Any, **options: Any) -> Any:
        if first.acquire(blocking=False):
            raise OSError("too many open files")
        return create(*arguments, **options)

    rings = gangs.ring("aaaa")
    monkeypatch.setattr(stride_links.socket, "create_server", create_server)
    for _ in range(2):
        sums = on_all(rings, lambda ring, rank: ring.allreduce(np.full(9_000, rank), "sum"))
        assert all(set(found.tolist()) == {6} for found in sums)
    assert not any(ring._strides for ring in rings)
    assert "too many open files" in caplog.text


def test_connections_that_fail_leave_the_ring(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stride_links, "OPEN_S", 0.5)
    rings = gangs.ring("abcd")
    opener = rings[1]._open_strides
    assert opener

    def refuses(*arguments: Any) -> Any:
        raise OSError("no route to host")

    invitation, order, _ = opener.args  # type: ignore[attr-defined]
    rings[1]._open_strides = functools.partial(
        stride_links.open_strides, invitation, order, refuses
    )
    sums = on_all(rings, lambda ring, rank: float(ring.allreduce(np.float64(rank), "sum")))
    assert sums == [6.0] * 4
    assert not any(ring._strides for ring in rings)
    assert "all collectives go around the ring: no route to host" in caplog.text


def test_rounds_are_recorded_from_the_first(gangs: Gangs, tmp_path: Path) -> None:
    """Also on connections that are opened while collectives are recorded."""
    rings = gangs.ring("aaaa")
    for rank, ring in enumerate(rings):
        start_recording(ring, str(tmp_path / f"{rank}.json"))
    opened_on(rings)
    for ring in rings:
        stop_recording(ring)
    assert all(type(links) is Links for ring in rings for links in ring._all_links())
    sums = on_all(rings, lambda ring, rank: float(ring.allreduce(np.float64(rank), "sum")))
    assert sums == [6.0] * 4
    for rank in range(4):
        events = json.loads((tmp_path / f"{rank}.json").read_text().rstrip(",\n") + "]")
        bars = [event for event in events if event.get("cat") == "collective"]
        sources = [bar["args"]["waits_for"] for bar in bars if bar["args"]["bytes"] == 1]
        assert sources == [(rank - 1) % 4, (rank - 1) % 4, (rank - 2) % 4]
