"""Runs anywhere (pure). Shuffle the rows of Arrow batches."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

OUTPUT_BATCH_BYTES = 8 << 20


def shuffled(
    lanes: Sequence[tuple[Iterator[pa.RecordBatch], Any]],
    chunk_rows: int,
    chunk_bytes: float,
    start: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several lanes in turn, each shuffled in chunks.

    A chunk of each lane is held in memory; where rows are so large that the chunks of fewer lanes
    have twice as many bytes as all may have, only theirs. As long as the chunks have equal numbers
    of rows, each lane has one of as many consecutive rows as there are lanes.

    Args:
        lanes: the rows of each lane, in batches of one schema, and the seed of their order, or the
            `numpy.random.Generator` of what is left of it.
        chunk_rows: maximum number of rows of a chunk.
        chunk_bytes: bytes of a chunk, which ends with about the row that reaches them; infinite if
            only rows count.
        start: number of rows to leave out at the beginning.

    Example:
        >>> tables = [pa.table({"i": [0, 1, 2]}), pa.table({"i": [7, 8, 9]})]
        >>> lanes = [(iter(table.to_batches()), seed) for seed, table in enumerate(tables)]
        >>> [batch.column("i").to_pylist() for batch in shuffled(lanes, 2, 1 << 20)]
        [[0, 7, 1, 8], [2, 9]]
    """
    open_lanes = deque(_Lane(batches, np.random.default_rng(seed)) for batches, seed in lanes)
    max_bytes = 2 * len(open_lanes) * chunk_bytes
    while open_lanes:
        window: list[pa.RecordBatch] = []
        orders, num_bytes = [], 0
        for _ in range(len(open_lanes)):
            lane = open_lanes.popleft()
            chunk, size = lane.next_chunk(chunk_rows, chunk_bytes)
            if chunk:
                open_lanes.append(lane)
                window += chunk
                orders.append(lane.random.permutation(sum(batch.num_rows for batch in chunk)))
                num_bytes += size
            if num_bytes >= max_bytes:
                break
        rows = sum(batch.num_rows for batch in window)
        if start < rows:
            yield from take_in_order(window, _in_turn(orders).slice(start))
        start = max(start - rows, 0)


class _Lane:
    """The rows of one lane that are not read yet.

    Args:
        batches: the rows.
        random: the source of the order of the rows in each chunk.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], random: np.random.Generator) -> None:
        self.random = random
        self._batches = batches
        self._batch_left: pa.RecordBatch | None = None

    def next_chunk(self, max_rows: int, max_bytes: float) -> tuple[list[pa.RecordBatch], int]:
        """Return the next rows, none at the end, and their number of bytes."""
        chunk, rows, num_bytes = [], 0, 0
        while rows < max_rows and num_bytes < max_bytes:
            batch = self._batch_left or next(self._batches, None)
            self._batch_left = None
            if batch is None:
                break
            size = 0
            fitting = max_rows - rows
            if max_bytes < math.inf:  # Measuring visits each column of many short batches.
                size = batch.nbytes
                fitting = min(
                    int(-(-batch.num_rows * (max_bytes - num_bytes) // max(size, 1))), fitting
                )
            if batch.num_rows > fitting:
                size = size * fitting // batch.num_rows
                self._batch_left = batch.slice(fitting)
                batch = batch.slice(0, fitting)
            if batch.num_rows:
                chunk.append(batch)
                rows, num_bytes = rows + batch.num_rows, num_bytes + size
        return chunk, num_bytes


def _in_turn(orders: Sequence["np.ndarray[tuple[int], np.dtype[np.int64]]"]) -> pa.Array:
    """Return the order in which the rows of chunks that follow each other are taken in turn.

    A shorter chunk is spread evenly over the longer ones.
    """
    counts = np.array([len(order) for order in orders])
    starts = np.cumsum(counts) - counts
    joined = np.concatenate([start + order for start, order in zip(starts, orders, strict=True)])
    if len(set(counts.tolist())) == 1:
        return pa.array(joined.reshape(len(orders), -1).T.ravel())
    places = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    return pa.array(joined[np.argsort(places, kind="stable")])


def take_in_order(batches: list[pa.RecordBatch], order: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in an order, in batches of about 8 MiB.

    Args:
        batches: the batches, at least one.
        order: the places of the rows to yield.
    """
    rows = pa.concat_batches(batches)
    step = max(OUTPUT_BATCH_BYTES * rows.num_rows // max(rows.nbytes, 1), 1)
    for begin in range(0, rows.num_rows, step):
        yield rows.take(order.slice(begin, step))
