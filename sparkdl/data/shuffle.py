"""Runs anywhere (pure). Shuffle the rows of Arrow batches."""

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

__all__ = ["MIN_SLICES", "SHUFFLED_RANGES", "in_turn", "shuffled"]

# Number of pieces whose rows are mixed before they are shuffled, and the least number of slices of
# them in a window.
SHUFFLED_RANGES = 4
MIN_SLICES = 64

MAX_WINDOW_BYTES = 256 << 20
OUTPUT_BATCH_BYTES = 8 << 20


def shuffled(
    batches: Iterator[pa.RecordBatch], window_rows: int, seed: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the batches, shuffled within windows of consecutive rows.

    Args:
        batches: the rows, in batches of one schema.
        window_rows: number of rows that are held in memory and shuffled together; fewer if they
            exceed 256 MiB.
        seed: seed of the random order.

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
        if rows >= window_rows or num_bytes >= MAX_WINDOW_BYTES:
            yield from _permuted(window, random)
            window, rows, num_bytes = [], 0, 0
    if window:
        yield from _permuted(window, random)


def _permuted(
    window: list[pa.RecordBatch], random: "np.random.Generator"
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a window in random order, in batches of about 8 MiB."""
    joined = pa.concat_batches(window)
    order = pa.array(random.permutation(joined.num_rows))
    step = max(OUTPUT_BATCH_BYTES * joined.num_rows // max(joined.nbytes, 1), 1)
    for begin in range(0, joined.num_rows, step):
        yield joined.take(order.slice(begin, step))


def in_turn(sources: Iterable[Iterator[pa.RecordBatch]], max_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several sources in turn, some rows of each, until all are exhausted.

    Args:
        sources: the sources.
        max_rows: maximum number of consecutive rows of one source.

    Example:
        >>> tables = [pa.table({"i": [0, 1, 2]}), pa.table({"i": [8]})]
        >>> rows = in_turn([iter(table.to_batches()) for table in tables], 2)
        >>> [batch.column("i").to_pylist() for batch in rows]
        [[0, 1], [8], [2]]
    """
    queue = deque((source, next(source, None)) for source in sources)
    while queue:
        source, batch = queue.popleft()
        if batch is not None:
            yield batch.slice(0, max_rows)
            rest = batch.slice(max_rows)
            queue.append((source, rest if rest.num_rows else next(source, None)))
