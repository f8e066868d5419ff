"""Arrays whose rows differ in length, and batches of them."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data.array_batches import rebatched
from sparkdl.data.ragged import Ragged

ROWS = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3), max_size=9)


def ragged(rows: list[list[list[int]]]) -> Ragged:
    inner = [part for row in rows for part in row]
    values = np.array([value for part in inner for value in part], np.int64)
    return Ragged.from_lengths(values, [list(map(len, rows)), list(map(len, inner))])


@settings(deadline=None, max_examples=50)
@given(ROWS, st.integers(0, 9), st.integers(0, 9))
def test_slices_are_those_of_a_list(rows: list[Any], start: int, stop: int) -> None:
    stop = max(start, stop)
    assert ragged(rows).to_list() == rows
    assert ragged(rows)[start:stop].to_list() == rows[start:stop]
    assert Ragged.concatenate([ragged(rows), ragged(rows[1:])]).to_list() == rows + rows[1:]


@settings(deadline=None, max_examples=50)
@given(st.lists(ROWS, max_size=4), st.integers(1, 7), st.booleans())
def test_batches_have_all_rows_in_order(blocks: list[Any], size: int, drops: bool) -> None:
    elements = [{"r": ragged(rows), "t": (np.arange(len(rows)),)} for rows in blocks if rows]
    expected = [row for rows in blocks for row in rows]
    numbers = [number for rows in blocks for number in range(len(rows))]
    kept = len(expected) // size * size if drops else len(expected)
    found = list(rebatched(iter(elements), size, drops))
    assert [row for batch in found for row in batch["r"].to_list()] == expected[:kept]
    assert [i for batch in found for i in batch["t"][0].tolist()] == numbers[:kept]
    assert {len(batch["r"]) for batch in found[:-1]} <= {size}
