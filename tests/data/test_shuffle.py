"""Batches of shuffled rows, and their size."""

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data import shuffle
from sparkdl.data.shuffle import take_in_order


@pytest.mark.parametrize(("max_bytes", "sizes"), [(1, [1] * 6), (16, [2] * 3), (1 << 20, [6])])
def test_rows_come_in_batches_of_some_bytes_but_at_least_one_row(
    monkeypatch: pytest.MonkeyPatch, max_bytes: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(shuffle, "OUTPUT_BATCH_BYTES", max_bytes)
    batches = [pa.record_batch({"id": np.arange(begin, begin + 3)}) for begin in (0, 3)]
    order = [5, 0, 3, 1, 4, 2]
    found = list(take_in_order(batches, pa.array(order)))
    assert [batch.num_rows for batch in found] == sizes
    assert [i for batch in found for i in batch.column("id").to_pylist()] == order
