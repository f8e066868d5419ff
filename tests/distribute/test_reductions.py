"""Reductions of a ring, compared with Python's integers and NumPy's float64; several threads."""

import contextlib
import math
import socket
import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.distribute.reductions import quotients_and_remainders, reduce_arrays
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.stride_plan import SHORT_BYTES
from tests.helpers.rings import connected, on_all

INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
OPERATIONS = ["sum", "mean", "min", "max", "product"]


@contextlib.contextmanager
def opened() -> Iterator[list[socket.socket]]:
    """Close the sockets that the block adds to a list."""
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [one.close() for one in sockets])
        yield sockets


@pytest.fixture(name="sockets")
def opened_sockets() -> Iterator[list[socket.socket]]:
    with opened() as sockets:
        yield sockets


def dtype_of(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def limits(dtype: Any) -> tuple[Any, Any]:
    info = np.iinfo(dtype) if dtype.kind in "iu" else ml_dtypes.finfo(dtype)
    return info.min, info.max


def drawn(dtype: Any, num_ranks: int, size: int, seed: int) -> list[Any]:
    """Return arrays with small values, and rows of the largest and the smallest ones."""
    random = np.random.default_rng(seed)
    low, high = limits(dtype)
    if dtype.kind in "iu":
        values = random.integers(low, high, (num_ranks, size), dtype, endpoint=True)
    else:
        values = random.normal(size=(num_ranks, size)).astype(dtype)
    values[:, 0::7] = high
    values[:, 1::7] = low
    values[:, 2::7] = np.array([low, high], dtype)[random.integers(0, 2, values[:, 2::7].shape)]
    return list(values)


def exact(arrays: list[Any], op: str) -> Any:
    """Return what Python's integers give, wrapped around as the dtype does."""
    columns = np.stack([array.astype(object) for array in arrays])
    if op in ("min", "max"):
        return getattr(columns, op)(axis=0).astype(arrays[0].dtype)
    found = columns.prod(axis=0) if op == "product" else columns.sum(axis=0)
    if op == "mean":
        return np.array([total // len(arrays) for total in found], object).astype(arrays[0].dtype)
    bits = 8 * arrays[0].itemsize
    wrapped = np.array([int(value) % (1 << bits) for value in found], np.uint64)
    return wrapped.astype(f"uint{bits}").view(arrays[0].dtype)


def reduced(order: list[int], arrays: list[Any], op: str) -> Any:
    """Return what all ranks get, by `allreduce` and by `reduce_scatter`."""

    def call(ring: Ring, rank: int) -> Any:
        return ring.allreduce(arrays[rank], op), ring.reduce_scatter(arrays[rank], op)

    with opened() as sockets:
        results = on_all(connected(order, sockets), call)
    whole = [one for one, _ in results]
    assert len({one.tobytes() for one in whole}) == 1, "the ranks have different bits"
    assert whole[0].dtype == arrays[0].dtype
    return whole[0], np.concatenate([part for _, part in results])


def draw_ranks(
    data: st.DataObject, dtype: Any, num_ranks: int, is_long: bool
) -> tuple[list[int], list[Any]]:
    """Return the order of the ranks in the ring, and their arrays."""
    order = data.draw(st.permutations(range(num_ranks)))
    size = SHORT_BYTES // dtype.itemsize + 9 if is_long else data.draw(st.integers(0, 40))
    return order, drawn(dtype, num_ranks, size, data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(INTEGERS),
    op=st.sampled_from(OPERATIONS),
    is_long=st.booleans(),
    data=st.data(),
)
def test_integers_are_those_of_python(
    num_ranks: int, name: str, op: str, is_long: bool, data: st.DataObject
) -> None:
    dtype = dtype_of(name)
    order, arrays = draw_ranks(data, dtype, num_ranks, is_long)
    whole, parts = reduced(order, arrays, op)
    np.testing.assert_array_equal(whole, exact(arrays, op))
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(FLOATS),
    op=st.sampled_from(OPERATIONS),
    is_long=st.booleans(),
    data=st.data(),
)
def test_floats_are_those_of_float64(
    num_ranks: int, name: str, op: str, is_long: bool, data: st.DataObject
) -> None:
    """A mean of 16 bits is finite wherever the values are; a sum may be infinite."""
    dtype = dtype_of(name)
    order, arrays = draw_ranks(data, dtype, num_ranks, is_long)
    if op != "mean" or dtype.itemsize > 2:  # Beyond the limits the order of the ranks matters.
        factor = 0.9 / num_ranks
        if op == "product":
            factor *= float(limits(dtype)[1]) ** (1 / num_ranks - 1)
        arrays = [(array.astype("f8") * factor).astype(dtype) for array in arrays]
    whole, parts = reduced(order, arrays, op)
    wide = np.stack([array.astype("f8") for array in arrays])
    function = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "product": np.prod}
    with np.errstate(over="ignore"):
        expected = wide.mean(axis=0) if op == "mean" else function[op](wide, axis=0)
        scale = np.abs(wide).prod(0) if op == "product" else np.abs(wide / num_ranks).sum(0)
    epsilon, smallest = float(ml_dtypes.finfo(dtype).eps), float(ml_dtypes.finfo(dtype).tiny)
    tolerance = num_ranks * epsilon * (scale if op != "sum" else num_ranks * scale) + smallest
    difference = np.abs(whole.astype("f8") - expected)
    assert (difference <= tolerance).all(), (difference - tolerance).max(initial=0)
    assert parts.tobytes() == whole.tobytes() or op == "mean" or op == "sum"


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [3, SHORT_BYTES])
def test_a_mean_that_the_dtype_holds_is_finite(name: str, size: int, sockets: Any) -> None:
    dtype = dtype_of(name)
    largest = np.full(size, limits(dtype)[1], dtype)
    for result in on_all(connected([0, 1, 2], sockets), lambda ring, rank: ring.allreduce(largest)):
        np.testing.assert_array_equal(result, largest)


@pytest.mark.parametrize("num_ranks", [2, 11, 12, 17, 130, 260])
@pytest.mark.parametrize("name", INTEGERS)
def test_means_of_integers_of_many_ranks_are_exact(name: str, num_ranks: int) -> None:
    arrays = drawn(dtype_of(name), num_ranks, 21, num_ranks)
    out = np.empty(21, name)
    reduce_arrays(arrays, out, "mean")
    np.testing.assert_array_equal(out, exact(arrays, "mean"))


def test_small_integers_travel_as_small_integers() -> None:
    for name in ("int8", "uint8", "int32"):
        parts = quotients_and_remainders(np.arange(5).astype(name), 3)
        assert [part.dtype for part in parts] == [name, name]


@pytest.mark.parametrize("size", [3, SHORT_BYTES])
def test_a_vote_means_integers_as_allreduce_does(size: int, sockets: Any) -> None:
    outs = [np.zeros(3, np.int8) for _ in range(2)]

    def call(ring: Ring, rank: int) -> Any:
        return ring.vote(1, np.full(3, 100, np.int8), "mean", outs[rank])

    assert on_all(connected([0, 1], sockets), call) == [1, 1]
    assert [out.tolist() for out in outs] == [[100] * 3] * 2


CALLS = {
    "allreduce": lambda ring, array: ring.allreduce(array),
    "reduce_scatter": lambda ring, array: ring.reduce_scatter(array),
    "broadcast": lambda ring, array: ring.broadcast(array),
    "allgather": lambda ring, array: ring.allgather(array[:1]),
    "alltoall": lambda ring, array: ring.alltoall(array[:1], [1, 0]),
    "vote": lambda ring, array: ring.vote(1, array, "sum", np.empty_like(array)),
}
PAIRS = {
    "shapes": (np.zeros((3, 2)), np.zeros((1, 3, 2)), "float64 (3, 2)", "float64 (1, 3, 2)"),
    "bytes": (np.zeros(6, "<f4"), np.zeros(6, ">f4"), "float32 (6,)", ">f4 (6,)"),
    "dtypes": (np.zeros(6, "i4"), np.zeros(6, "f4"), "int32 (6,)", "float32 (6,)"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("pair", PAIRS)
def test_arrays_with_as_many_bytes_are_told_apart(call: str, pair: str, sockets: Any) -> None:
    *arrays, first, second = PAIRS[pair]
    rings = connected([0, 1], sockets)
    errors = [str(e) for e in on_all(rings, lambda ring, rank: CALLS[call](ring, arrays[rank]))]
    if "differ in their first dimension only" in errors[0]:
        return
    said = next(error for error in errors if "do not call the same collectives" in error)
    if call not in ("allgather", "alltoall"):
        assert first in said
        assert second in said
    assert all(ring.broken for ring in rings)


def test_long_shapes_are_told_apart(sockets: Any) -> None:
    """The header has the beginning of a shape only."""
    ones = [1] * 20
    arrays = [np.zeros((*ones, 2, 3)), np.zeros((*ones, 3, 2))]
    errors = on_all(connected([0, 1], sockets), lambda ring, rank: ring.allreduce(arrays[rank]))
    assert any("of another dtype or shape" in str(error) for error in errors)


class _Watched:
    """A lock that says when a second thread asks for it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._first = threading.get_ident()
        self.is_wanted = threading.Event()
        self.is_held = threading.Event()

    def __enter__(self) -> None:
        if self.is_held.is_set() and threading.get_ident() != self._first:
            self.is_wanted.set()
        self._lock.acquire()
        if not self.is_held.is_set():
            self._first = threading.get_ident()
            self.is_held.set()

    def __exit__(self, *error: Any) -> None:
        self._lock.release()


@pytest.mark.parametrize("call", ["allreduce", "allgather", "alltoall"])
def test_threads_of_a_rank_take_turns(call: str, sockets: Any) -> None:
    """Rank 0 calls from two threads, of which the second waits, before rank 1 calls at all."""
    first, second = connected([0, 1], sockets)
    watched = _Watched(first._lock)
    first._lock = watched
    results: dict[str, Any] = {}

    def turn(name: str, ring: Ring, value: float) -> None:
        try:
            array = np.full((2, 1), value)
            results[name] = {
                "allreduce": lambda: ring.allreduce(array, "sum"),
                "allgather": lambda: np.concatenate(ring.allgather(array)),
                "alltoall": lambda: np.concatenate(ring.alltoall(array, [1, 1])),
            }[call]()
        except Exception as exc:
            results[name] = exc

    def start(name: str, value: float) -> threading.Thread:
        thread = threading.Thread(target=turn, args=(name, first, value))
        thread.start()
        return thread

    threads = [start("a", 1.0)]
    assert watched.is_held.wait(60)
    threads.append(start("b", 10.0))
    assert watched.is_wanted.wait(60)
    turn("A", second, 2.0)
    turn("B", second, 20.0)
    for thread in threads:
        thread.join(60)
    for mine, others, small in (("a", "A", 1.0), ("b", "B", 10.0)):
        assert not isinstance(results[mine], Exception), results[mine]
        assert (
            results[mine].sum()
            == results[others].sum()
            == (6 * small if call != "alltoall" else 3 * small)
        )
    assert math.isfinite(results["a"].sum())
