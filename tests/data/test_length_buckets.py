"""Rows of similar length in the same batch."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data.length_buckets import by_length


def rows_of(batches: Any) -> list[Any]:
    return [row for batch in batches for row in batch["x"].to_pylist()]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 5), max_size=7), max_size=4),
    st.integers(1, 3),
    st.none() | st.just(7),
)
def test_every_row_is_given_once_in_full_batches(
    blocks: list[list[int]], size: int, seed: int | None
) -> None:
    batches = [pa.record_batch({"x": [[n] * n for n in block]}) for block in blocks if block]
    batches = [batch for batch in batches if batch.schema.field("x").type != pa.list_(pa.null())]
    found = list(by_length(iter(batches), "x", size, seed, window_batches=2))
    assert sorted(rows_of(found)) == sorted(rows_of(batches))
    assert {batch.num_rows for batch in found[:-1]} <= {size}


def test_batches_have_rows_of_similar_length_in_random_order() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    batch = pa.record_batch({"x": [list(range(n)) for n in lengths]})
    found = [[len(x) for x in b["x"].to_pylist()] for b in by_length(iter([batch]), "x", 10, 1)]
    assert sum(max(one) * len(one) for one in found) < 1.1 * lengths.sum()
    assert sum(lengths[i : i + 10].max() * 10 for i in range(0, 1000, 10)) > 1.6 * lengths.sum()
    longest = [max(one) for one in found]
    assert longest != sorted(longest)
    assert found != [
        [len(x) for x in b["x"].to_pylist()] for b in by_length(iter([batch]), "x", 10, 2)
    ]
