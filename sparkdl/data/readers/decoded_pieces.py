"""Runs in the training process. Keep decoded pieces on the local disk while lanes read them.

A row group or CSV file can only be read from its start. Where several lanes begin in one piece, it
is decoded once, into an unnamed file, from which each lane reads its part.
"""

import errno
import mmap
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from sparkdl.data.dataframe.spool import local_disk
from sparkdl.data.shard import Range

__all__ = ["DecodedPieces"]

# Mapped pages that were read count as memory of this process until they are released.
RELEASE_BYTES = 32 << 20


class DecodedPieces:
    """Pieces that are decoded when they are first read, and removed when all parts were read.

    Args:
        read: yields the rows of a range of a piece.
        parts: all parts that will be read, each once.
    """

    def __init__(
        self, read: Callable[[Range], Iterator[pa.RecordBatch]], parts: Sequence[Range]
    ) -> None:
        self._read = read
        self._extents: dict[int, Range] = {}
        for part in parts:
            known = self._extents.get(part.piece, part)
            start, stop = min(known.start, part.start), max(known.stop, part.stop)
            self._extents[part.piece] = Range(part.piece, start, stop)
        self._num_left = Counter(part.piece for part in parts)
        self._pieces: dict[int, _Decoded] = {}

    def rows(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part.

        Raises:
            OSError: if the local disk is full, with advice.
        """
        extent = self._extents[part.piece]
        if part.piece not in self._pieces:
            self._pieces[part.piece] = _Decoded(self._read(extent))
        yield from self._pieces[part.piece].rows(
            part.start - extent.start, part.stop - extent.start
        )
        self._num_left[part.piece] -= 1
        if not self._num_left[part.piece]:
            del self._pieces[part.piece]


class _Decoded:
    """A piece in an unnamed, mapped file.

    Args:
        batches: the rows.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
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
        self._batches = list(pa.ipc.open_stream(pa.py_buffer(self._file)))
        self._num_read_bytes = 0

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield rows `start <= i < stop`."""
        for batch in self._batches:
            begin, end = max(start, 0), min(stop, batch.num_rows)
            if begin < end:
                part = batch.slice(begin, end - begin)
                self._release(part.nbytes)
                yield part
            start, stop = start - batch.num_rows, stop - batch.num_rows
            if stop <= 0:
                return

    def _release(self, num_bytes: int) -> None:
        self._num_read_bytes += num_bytes
        if self._num_read_bytes >= RELEASE_BYTES:
            self._file.madvise(mmap.MADV_DONTNEED)  # The pages stay in the page cache.
            self._num_read_bytes = 0


def _advice() -> str:
    return (
        f"no room in {local_disk()} for the decoded rows of row groups or files that are shuffled. "
        "Free space there, set spark.local.dir to a larger disk, or write at least 64 row groups "
        "or files, which are shuffled without copies"
    )
