"""Runs anywhere (pure). Rows of Arrow batches in another order."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

__all__ = ["shuffled"]

WINDOW_BYTES = 256 << 20
ELEMENT_BYTES = 8 << 20


def shuffled(
    batches: Iterator[pa.RecordBatch], window_rows: int, seed: int
) -> Iterator[pa.RecordBatch]:
    """The same rows, each window of them in another order.

    Args:
        batches: the rows, in batches of one schema.
        window_rows: how many rows are held and mixed at a time; fewer where they are large.
        seed: says which order.

    Example:
        >>> rows = pa.table({"i": [0, 1, 2, 3]}).to_batches()
        >>> sorted(next(shuffled(iter(rows), 4, seed=0)).column("i").to_pylist())
        [0, 1, 2, 3]
    """
    random = np.random.default_rng(seed)
    window: list[pa.RecordBatch] = []
    rows = num_bytes = 0
    for batch in batches:
        window.append(batch)
        rows, num_bytes = rows + batch.num_rows, num_bytes + batch.nbytes
        if rows >= window_rows or num_bytes >= WINDOW_BYTES:
            yield from _permuted(window, random)
            window, rows, num_bytes = [], 0, 0
    if window:
        yield from _permuted(window, random)


def _permuted(
    window: list[pa.RecordBatch], random: "np.random.Generator"
) -> Iterator[pa.RecordBatch]:
    """The rows of a window in batches of some MB, as they are taken elsewhere."""
    joined = pa.concat_batches(window)
    order = pa.array(random.permutation(joined.num_rows))
    step = max(ELEMENT_BYTES * joined.num_rows // max(joined.nbytes, 1), 1)
    for begin in range(0, joined.num_rows, step):
        yield joined.take(order.slice(begin, step))
