"""Runs in the training process. Keep decoded pieces while lanes read their sections.

A row group or CSV file can only be read from its start, and a shuffled pass reads its sections in
random order. So each piece is decoded once, and kept in memory or in an unnamed file on the local
disk until all its sections were read.
"""

import bisect
import errno
import itertools
import mmap
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from sparkdl.data.dataframe.spool import local_disk
from sparkdl.data.lanes import Lane
from sparkdl.data.shard import Range

__all__ = ["DecodedPieces"]

# Bytes of decoded pieces that are kept in memory.
MEMORY_BYTES = 256 << 20
# Mapped pages that were read count as memory of this process until they are released.
RELEASE_BYTES = 1 << 20


class DecodedPieces:
    """Pieces that are decoded when they are first read, and removed when all rows were read.

    Args:
        read: yields the rows of a range of a piece.
        lanes: the lanes, whose rows will be read once.
    """

    def __init__(
        self, read: Callable[[Range], Iterator[pa.RecordBatch]], lanes: Iterable[Lane]
    ) -> None:
        self._read = read
        self._extents: dict[int, Range] = {}
        self._num_left: Counter[int] = Counter()
        for lane in lanes:
            for part in lane.ranges:
                known = self._extents.get(part.piece, part)
                start, stop = min(known.start, part.start), max(known.stop, part.stop)
                self._extents[part.piece] = Range(part.piece, start, stop)
                self._num_left[part.piece] += part.stop - part.start
            if lane.head:
                self._num_left[lane.ranges[0].piece] -= lane.head
        self._pieces: dict[int, _Decoded] = {}
        self._memory_bytes = 0

    def rows(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, each part once.

        Raises:
            OSError: if the local disk is full, with advice.
        """
        piece, extent = part.piece, self._extents[part.piece]
        if piece not in self._pieces:
            decoded = _Decoded(self._read(extent), MEMORY_BYTES - self._memory_bytes)
            self._memory_bytes += decoded.memory_bytes
            self._pieces[piece] = decoded
        yield from self._pieces[piece].rows(part.start - extent.start, part.stop - extent.start)
        self._num_left[piece] -= part.stop - part.start
        if not self._num_left[piece]:
            self._memory_bytes -= self._pieces.pop(piece).memory_bytes


class _Decoded:
    """A decoded piece, in memory or in an unnamed, mapped file.

    Args:
        batches: the rows.
        max_bytes: bytes that it may take in memory.

    Attributes:
        memory_bytes: bytes that it takes in memory.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], max_bytes: int) -> None:
        self.memory_bytes = 0
        self._file: mmap.mmap | None = None
        self._batches: list[pa.RecordBatch] = []
        for batch in batches:
            self._batches.append(batch)
            self.memory_bytes += batch.get_total_buffer_size()
            if self.memory_bytes > max_bytes:
                self._batches = self._on_disk(itertools.chain(self._batches, batches))
                self.memory_bytes = 0
        self._ends = list(itertools.accumulate(batch.num_rows for batch in self._batches))
        self._num_read_bytes = 0

    def _on_disk(self, batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        try:
            # Around the file as well: closing it writes again what did not fit.
            with tempfile.TemporaryFile(dir=local_disk()) as file:
                first = next(batches)
                with pa.ipc.new_stream(file, first.schema) as writer:
                    writer.write_batch(first)
                    for batch in batches:
                        writer.write_batch(batch)
                file.flush()
                self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OSError(exc.errno, f"{exc.strerror}: {_advice()}") from exc
            raise
        return list(pa.ipc.open_stream(pa.py_buffer(self._file)))

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield rows `start <= i < stop`."""
        number = bisect.bisect_right(self._ends, start)
        while start < stop:
            batch, end = self._batches[number], self._ends[number]
            part = batch.slice(start - end + batch.num_rows, min(stop, end) - start)
            if self._file is not None:
                self._release(self._file, part.nbytes)
            yield part
            start, number = end, number + 1

    def _release(self, file: mmap.mmap, num_bytes: int) -> None:
        self._num_read_bytes += num_bytes
        if self._num_read_bytes >= RELEASE_BYTES:
            file.madvise(mmap.MADV_DONTNEED)  # The pages stay in the page cache.
            self._num_read_bytes = 0


def _advice() -> str:
    return (
        f"no room in {local_disk()} for the decoded rows of row groups or files that are shuffled. "
        "Free space there, set spark.local.dir to a larger disk, or write more and smaller row "
        "groups or files, of which 128 are kept at a time"
    )
