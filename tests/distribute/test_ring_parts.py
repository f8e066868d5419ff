"""The parts that ranks reduce and gather: with them, an array is as after an all-reduce."""

import contextlib
import itertools
import socket
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.distribute.ring import Ring
from sparkdl.distribute.rows import row_slices
from sparkdl.distribute.shard_exchange import ShardExchange
from sparkdl.distribute.shared_memory import BLOCK_BYTES
from sparkdl.distribute.stride_plan import SHORT_BYTES
from tests.helpers.rings import connected, on_all

SIZES = [0, 1, 2, 7, SHORT_BYTES // 4 + 1, BLOCK_BYTES // 4 * 3 + 7]
orders = st.integers(1, 5).flatmap(lambda n: st.permutations(range(n)))


@settings(max_examples=60, deadline=None)
@given(order=orders, size=st.sampled_from(SIZES), op=st.sampled_from(["mean", "sum"]))
def test_gathered_parts_have_the_bits_of_allreduce(order: list[int], size: int, op: str) -> None:
    arrays = [np.random.default_rng(r).normal(size=size).astype("f4") for r in range(len(order))]

    def reduce_and_gather(ring: Ring, rank: int) -> Any:
        part = ring.reduce_part(arrays[rank], op, np.empty(size, "f4")).copy()
        assert part.size == len(range(size)[ring.part_of(size)])
        whole = np.full(size, np.nan, "f4")
        whole[ring.part_of(size)] = part
        ring.gather_parts(whole, row_slices(size, ring.size))
        return ring.allreduce(arrays[rank], op).tobytes(), whole.tobytes()

    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        stack.callback(lambda: [one.close() for one in sockets])
        results = on_all(connected(order, sockets), reduce_and_gather)
    assert {*itertools.chain(*results)} == {results[0][0]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_variables_of_all_sizes_are_gathered(count: int, dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    wholes = [np.arange(size).astype(kind) for size in (0, 1, 3, 10, 70_000)]

    def gather(ring: Ring, rank: int) -> Any:
        parts = [whole[ring.part_of(whole.size)] for whole in wholes]
        exchange = ShardExchange(ring)
        alone = [exchange.gather([w.size], part)[0] for w, part in zip(wholes, parts, strict=True)]
        return alone, exchange.gather([whole.size for whole in wholes], *parts)

    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        stack.callback(lambda: [one.close() for one in sockets])
        for results in on_all(connected(list(range(count)), sockets), gather):
            for seen in results:
                for whole, got in zip(wholes, seen, strict=True):
                    np.testing.assert_array_equal(got, whole)
