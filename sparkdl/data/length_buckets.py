"""Runs anywhere (pure). Put rows of similar length into the same batch, to pad less."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Number of batches whose rows are sorted together. The more, the less is padded, and the less
# random are the batches.
WINDOW_BATCHES = 64


def by_length(
    batches: Iterator[pa.RecordBatch],
    column: str,
    batch_size: int,
    seed: int | None,
    window_batches: int = WINDOW_BATCHES,
) -> Iterator[pa.RecordBatch]:
    """Yield all rows, sorted by the length of an array within windows of some batches.

    The number of rows stays the same, and with it the number of batches on every rank.

    Args:
        batches: the rows.
        column: name of a column of arrays.
        batch_size: number of rows that make a batch.
        seed: seed of the order of the batches in a window; None leaves them in order of length.
        window_batches: number of batches of a window.

    Example:
        >>> rows = pa.table({"x": [[1, 2, 3], [4], [5, 6, 7], [8]]}).to_batches()
        >>> [b["x"].to_pylist() for b in by_length(iter(rows), "x", 2, None)]
        [[[4], [8]], [[1, 2, 3], [5, 6, 7]]]
    """
    random = None if seed is None else np.random.default_rng(seed)
    size = window_batches * batch_size
    window: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        while rows + batch.num_rows >= size:
            head = batch.slice(0, size - rows)
            yield from _sorted([*window, head], column, batch_size, random)
            batch = batch.slice(size - rows)
            window, rows = [], 0
        if batch.num_rows:
            window.append(batch)
            rows += batch.num_rows
    if window:
        yield from _sorted(window, column, batch_size, random)


def _sorted(
    window: list[pa.RecordBatch],
    column: str,
    batch_size: int,
    random: "np.random.Generator | None",
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a window; a batch that is not full comes last, as it ends the pass."""
    joined = pa.concat_batches(window)
    lengths = pc.fill_null(pc.list_value_length(joined.column(column)), 0)
    order = np.argsort(lengths.to_numpy(zero_copy_only=False), kind="stable")
    num_full = len(order) // batch_size
    places = range(num_full) if random is None else random.permutation(num_full)
    for place in [*places, *([num_full] if len(order) % batch_size else [])]:
        yield joined.take(pa.array(order[place * batch_size : (place + 1) * batch_size]))
