"""Runs in the training process. Hold the received rows of one dataset."""

import mmap
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.errors import ConfigError

# Mapped pages that were read count as memory of this process until they are released.
RELEASE_BYTES = 32 << 20


@dataclass(frozen=True, eq=False)
class _Block:
    """A received batch.

    Attributes:
        start: number of the batch's first row among all rows of the dataset.
        rows: number of rows.
        message: the batch as an Arrow IPC message.
        file: the mapped file that holds the message.
    """

    start: int
    rows: int
    message: "np.ndarray[Any, Any]"
    file: mmap.mmap

    @property
    def stop(self) -> int:
        return self.start + self.rows

    def slice(self, start: int, stop: int, schema: pa.Schema) -> pa.RecordBatch:
        """Return the block's rows among rows `start <= i < stop` of the dataset."""
        batch = pa.ipc.read_record_batch(pa.py_buffer(self.message), schema)
        begin, end = max(start - self.start, 0), min(stop - self.start, self.rows)
        return batch.slice(begin, end - begin)


class RowBuffer:
    """The received rows of one dataset, filled by one thread and read by any thread.

    Args:
        name: name of the dataset.
        schema: names and types of its columns.
        requested: event that is set when a reader requests more rows.

    Attributes:
        name: name of the dataset.
        schema: names and types of its columns.
        rows: number of rows that have arrived.
        is_complete: True when all rows have arrived.
        error: the reason why not all rows will arrive; None if there is no error.
    """

    def __init__(self, name: str, schema: pa.Schema, requested: threading.Event) -> None:
        self.name = name
        self.schema = schema
        self.rows = 0
        self.is_complete = False
        self.error: str | None = None
        self._blocks: list[_Block] = []
        self._changed = threading.Condition()
        self._is_cached: bool | None = None
        self._max_rows: int | None = 0
        self._num_taken = 0
        self._requested = requested
        self._read_files: set[mmap.mmap] = set()
        self._read_bytes = 0

    # ---- for the thread that fills the buffer

    def add(self, rows: int, message: "np.ndarray[Any, Any]", file: mmap.mmap) -> bool:
        """Add the next batch.

        Args:
            rows: number of rows in the batch.
            message: the batch as an Arrow IPC message.
            file: the mapped file that holds the message.

        Returns:
            True if the batch is kept; False if it is discarded after use.
        """
        with self._changed:
            # The first batch is always kept, see `take`.
            is_kept = self._is_cached is not False or not self._blocks
            self._blocks.append(_Block(self.rows, rows, message, file))
            self.rows += rows
            self._changed.notify_all()
        return is_kept

    def complete(self, rows: int) -> None:
        """Record that all rows have been sent.

        Args:
            rows: number of rows that were sent.
        """
        with self._changed:
            self.is_complete = rows == self.rows
            if not self.is_complete:
                self.error = f"Spark sent {rows} rows and {self.rows} arrived"
            self._changed.notify_all()

    def fail(self, error: str) -> None:
        """Record that no more rows will arrive, although not all have arrived."""
        with self._changed:
            if not self.is_complete:
                self.error = self.error or error
            self._changed.notify_all()

    @property
    def has_enough(self) -> bool:
        """True if no reader needs more rows.

        Before `open` no reader needs any: rows that arrived earlier would be kept, whatever their
        number, although `cache=False` limits the rows that wait.
        """
        return self.is_complete or (self._max_rows is not None and self._max_rows <= self.rows)

    @property
    def is_read_in_part(self) -> bool:
        """True if it is known that not all rows are read, or that each row is read once only."""
        with self._changed:  # `open` sets both.
            is_limited = self._max_rows is not None
            return self._is_cached is False or (self._is_cached is True and is_limited)

    @property
    def is_cached(self) -> bool:
        """True if the rows are kept for further passes; False before `open`, too."""
        return bool(self._is_cached)

    # ---- for the threads that read

    def open(self, cache: bool, max_rows: int | None) -> None:
        """Declare how the rows will be read.

        Args:
            cache: True to read the rows any number of times; False to discard each row when it
                has been read.
            max_rows: number of rows to read; None for all.

        Raises:
            ConfigError: if the dataset is opened twice and one of the calls has `cache=False`.
        """
        with self._changed:
            if self._is_cached is False or (self._is_cached and not cache):
                raise ConfigError(
                    f"data {self.name!r} is read twice, and once with cache=False, which discards "
                    "each row after use. Remove cache=False, or read the data once."
                )
            self._is_cached = cache
            self.request(max_rows)

    def request(self, max_rows: int | None) -> None:
        """Request the first `max_rows` rows; None for all rows."""
        with self._changed:
            wants_all = max_rows is None or self._max_rows is None
            self._max_rows = None if wants_all else max(max_rows or 0, self._max_rows or 0)
        self._requested.set()

    def wait(self, beyond: int, timeout_s: float | None = None) -> None:
        """Wait until more than `beyond` rows or all rows have arrived, or the time is over.

        Args:
            beyond: number of rows that the caller has already.
            timeout_s: maximum seconds to wait; None waits without limit.

        Raises:
            RuntimeError: if the rows ended early.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.error or self.is_complete or self.rows > beyond, timeout_s
            )
            if self.error and self.rows <= beyond:
                raise RuntimeError(f"rows of data {self.name!r} are missing: {self.error}")

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield rows `start <= i < stop`, which must have arrived, in batches."""
        for block in self._overlapping(start, stop):
            self._release_read_pages(block)
            yield block.slice(start, stop, self.schema)

    def _release_read_pages(self, following: _Block) -> None:
        """Release the pages of the blocks that were read, once they are many.

        The pages are left to the page cache, and no longer count as memory of this process, which
        resource managers limit. A page that is used again is mapped again.
        """
        with self._changed:
            if self._read_bytes >= RELEASE_BYTES:
                for file in self._read_files:
                    file.madvise(mmap.MADV_DONTNEED)
                self._read_files.clear()
                self._read_bytes = 0
            self._read_files.add(following.file)
            self._read_bytes += len(following.message)

    def take(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield rows like `read`; without a cache, discard each batch when the next is requested.

        Raises:
            RuntimeError: if the rows are not cached and were taken before.
        """
        if self._is_cached:
            yield from self.read(start, stop)
            return
        if start < self._num_taken:
            raise RuntimeError(
                f"data {self.name!r} is read a second time; cache=False allows one pass only."
            )
        blocks = deque(self._overlapping(start, stop))
        while blocks:
            yield blocks[0].slice(start, stop, self.schema)
            self._discard(blocks.popleft(), stop)

    def _discard(self, block: _Block, stop: int) -> None:
        with self._changed:
            self._num_taken = min(stop, block.stop)
            # The first block is kept: one of its rows may be repeated at the end of the pass.
            if block.start and self._num_taken == block.stop:
                self._blocks.remove(block)

    def _overlapping(self, start: int, stop: int) -> Sequence[_Block]:
        with self._changed:
            first = bisect_right(self._blocks, start, key=lambda block: block.stop)
            end = bisect_left(self._blocks, stop, key=lambda block: block.start)
            return self._blocks[first:end]
