"""Runs in the training process. The rows of a rank, all of which have arrived."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data.dataframe.row_buffer import RowBuffer
from sparkdl.data.shuffle import take_in_order

# Rows that are as near to each other are read together, with those between them.
NEAR_ROWS = 64

Places = np.ndarray[Any, np.dtype[np.int64]]


class RankRows:
    """The first rows of a buffer, followed by rows of other ranks.

    Args:
        buffer: the rows that Spark has sent to the rank.
        keeps: number of the buffer's first rows.
        received: the rows of other ranks.

    Attributes:
        num_rows: number of rows.
    """

    def __init__(
        self, buffer: RowBuffer, keeps: int, received: Sequence[pa.RecordBatch] = ()
    ) -> None:
        self._buffer = buffer
        self._keeps = keeps
        self._received = list(received)
        self.num_rows = keeps + sum(batch.num_rows for batch in received)

    def followed_by(self, received: Sequence[pa.RecordBatch]) -> "RankRows":
        """Return the rows with more rows of other ranks after them."""
        return RankRows(self._buffer, self._keeps, [*self._received, *received])

    def in_order(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        yield from self._buffer.read(0, self._keeps)
        yield from self._received

    def take(self, places: Places, chunk_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield copies of rows by their places, in any order.

        Args:
            places: the places, an array (rows,).
            chunk_rows: number of rows that are held in memory.
        """
        for begin in range(0, len(places), chunk_rows):
            ascending, order = np.unique(places[begin : begin + chunk_rows], return_inverse=True)
            yield from take_in_order(list(self.ascending(ascending)), pa.array(order.ravel()))

    def ascending(self, places: Places) -> Iterator[pa.RecordBatch]:
        """Yield rows by ascending places.

        Args:
            places: the places, an array (rows,).
        """
        num_own = int(np.searchsorted(places, self._keeps))
        own, others = places[:num_own], places[num_own:] - self._keeps
        for run in np.split(own, np.flatnonzero(np.diff(own) > NEAR_ROWS) + 1):
            if len(run):
                begin = int(run[0])
                end = int(run[-1]) + 1
                yield from _rows_at(self._buffer.read(begin, end), run - begin)
        yield from _rows_at(self._received, others)


def _rows_at(batches: Iterable[pa.RecordBatch], places: Places) -> Iterator[pa.RecordBatch]:
    """Yield rows of batches that follow each other, by ascending places."""
    start = 0
    for batch in batches:
        first, last = np.searchsorted(places, [start, start + batch.num_rows])
        if last - first == batch.num_rows:
            yield batch
        elif last > first:
            yield batch.take(pa.array(places[first:last] - start))
        start += batch.num_rows
