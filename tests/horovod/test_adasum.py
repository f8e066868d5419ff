"""Adasum among any power of two of ranks; the oracle is the formula of its paper."""

import socket
import tracemalloc
from collections.abc import Iterator
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sparkdl.distribute.ring import Ring
from sparkdl.errors import PeerLostError
from sparkdl.horovod.agreement import Disagreement
from sparkdl.horovod.arrays import Reduction
from tests.helpers.joined_rings import Gangs
from tests.helpers.rings import connected, on_all

ADASUM = Reduction("adasum")


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for each in opened:
        each.close()


def of_paper(arrays: list[Any]) -> Any:
    """Adasum of two vectors, and of the results of two halves (arXiv:2006.02924, equation 5)."""
    if len(arrays) == 1:
        return arrays[0].astype(np.longdouble)
    half = len(arrays) // 2
    g, h = of_paper(arrays[:half]), of_paper(arrays[half:])
    product = (g * h).sum()

    def weight(norm: Any) -> Any:
        return 1 - product / (2 * norm) if norm else 1

    return weight((g * g).sum()) * g + weight((h * h).sum()) * h


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 2), (20_001,), (123, 457)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adasum_is_that_of_the_paper(
    size: int, shape: tuple[int, ...], dtype: str, sockets: list[socket.socket]
) -> None:
    rng = np.random.default_rng(size)
    base = rng.normal(size=shape)
    arrays = [np.asarray(base + rng.normal(size=shape), dtype) for _ in range(size)]
    arrays[-1] *= size < 8  # One of zeros, which has no direction.
    order = rng.permutation(size).tolist()
    got = on_all(connected(order, sockets), lambda ring, rank: ADASUM(ring, arrays[rank])[0])
    assert [each.tobytes() for each in got] == [got[0].tobytes()] * size
    assert (got[0].shape, got[0].dtype.name) == (shape, dtype)
    expected = of_paper(arrays).astype(dtype)
    np.testing.assert_allclose(got[0], expected, rtol=1e-5 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("nodes", ["aa", "abab", "aabb", "aabbaabb"])
@pytest.mark.parametrize(
    ("dtype", "rtol"), [("float32", 1e-5), ("float64", 1e-10), ("float16", 2e-3)]
)
def test_ranks_swap_halves_of_long_arrays(
    nodes: str, dtype: str, rtol: float, gangs: Gangs
) -> None:
    """Over connections of their own, with one rank whose array is zero."""
    size, length = len(nodes), 300_001
    base = np.random.default_rng(size).normal(size=length)
    noise = [np.random.default_rng([rank]).normal(size=length) for rank in range(size)]
    arrays = [np.asarray(base + each, dtype) for each in noise]
    arrays[size // 2] *= 0
    rings = gangs.ring(nodes)
    got = on_all(rings, lambda ring, rank: ADASUM(ring, arrays[rank])[0])
    assert all(len(ring._pairs) == size.bit_length() - 1 for ring in rings)
    assert [each.tobytes() for each in got] == [got[0].tobytes()] * size
    tolerance = {"rtol": rtol, "atol": 1e-4 if dtype == "float16" else 0}
    np.testing.assert_allclose(got[0], of_paper(arrays).astype(dtype), **tolerance)


@pytest.mark.parametrize("factor", [1e-30, 1e30])
@pytest.mark.parametrize("length", [1_000, 20_001])
def test_squares_of_bfloat16_may_exceed_the_range_of_float32(
    factor: float, length: int, gangs: Gangs
) -> None:
    arrays = [
        (np.random.default_rng([rank]).normal(1, size=length) * factor).astype(ml_dtypes.bfloat16)
        for rank in range(4)
    ]
    got = on_all(gangs.ring("aabb"), lambda ring, rank: ADASUM(ring, arrays[rank])[0])
    assert [each.tobytes() for each in got] == [got[0].tobytes()] * 4
    expected = of_paper(arrays).astype(np.float64)
    np.testing.assert_allclose(got[0].astype(np.float64), expected, 0.01, 0.02 * factor)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_each_rank_sends_about_two_arrays(size: int, gangs: Gangs) -> None:
    rings, array = gangs.ring("a" * size), np.ones(1 << 18, np.float32)
    sent = [0] * size

    def call(ring: Ring, rank: int) -> Any:
        swap = ring.swap

        def counted(values: Any, *more: int) -> Any:
            sent[rank] += values.nbytes
            return swap(values, *more)

        ring.swap = counted  # type: ignore[method-assign]
        return ADASUM(ring, array)[0].shape

    assert on_all(rings, call) == [array.shape] * size
    assert max(sent) < 2.2 * array.nbytes


@pytest.mark.parametrize("lost", range(4))
def test_a_rank_that_leaves_is_noticed_by_all(lost: int, gangs: Gangs) -> None:
    rings, array = gangs.ring("aabb"), np.ones(20_000)
    on_all(rings, lambda ring, rank: ADASUM(ring, array)[0].shape)

    def call(ring: Ring, rank: int) -> Any:
        return ring.close() if rank == lost else ring.swap(array, 0, array.size)

    def then(ring: Ring, rank: int) -> Any:
        return None if rank == lost else ADASUM(ring, array)

    results = [on_all(rings, each) for each in (call, then)]
    assert isinstance(results[0][lost ^ 1], PeerLostError)
    assert all(isinstance(results[1][rank], PeerLostError) for rank in range(4) if rank != lost)


def test_ranks_with_different_calls_get_an_error(gangs: Gangs) -> None:
    rings, array = gangs.ring("aabb", timeout_s=4.0), np.ones(20_000)
    on_all(rings, lambda ring, rank: ring.swap(array, 0, array.size).shape)

    def call(ring: Ring, rank: int) -> Any:
        return ring.broadcast(array) if rank == 1 else ring.swap(array, 0, array.size)

    errors = on_all(rings, call)
    assert any("do not call the same collectives" in str(error) for error in errors), errors


def test_equal_arrays_are_averaged_and_those_at_right_angles_added(
    sockets: list[socket.socket],
) -> None:
    rings = connected([0, 1, 2, 3], sockets)
    same = np.arange(50_000.0)
    for got in on_all(rings, lambda ring, rank: ADASUM(ring, same)[0]):
        np.testing.assert_allclose(got, same)
    parts = [np.where(np.arange(50_000) % 4 == rank, 1.0, 0.0) for rank in range(4)]
    for got in on_all(rings, lambda ring, rank: ADASUM(ring, parts[rank])[0]):
        np.testing.assert_allclose(got, reduce(np.add, parts))


def test_memory_does_not_grow_with_the_number_of_ranks(sockets: list[socket.socket]) -> None:
    """The ranks are threads: a rank has as much of the memory as it would alone."""
    array = np.ones(1 << 18, np.float32)
    for size in (2, 8):
        rings = connected([*range(size)], sockets)
        tracemalloc.start()
        on_all(rings, lambda ring, rank: ADASUM(ring, array)[0].shape)
        peak = tracemalloc.get_traced_memory()[1] / size
        tracemalloc.stop()
        assert peak < 7 * array.nbytes


def test_another_number_of_ranks_is_refused(sockets: list[socket.socket]) -> None:
    rings = connected([0, 1, 2], sockets)
    for error in on_all(rings, lambda ring, rank: ADASUM(ring, np.ones(9))):
        assert isinstance(error, Disagreement)
        assert "Adasum was called by 3 ranks; expected a power of two" in str(error)
