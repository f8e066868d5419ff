"""Runs in the training process. Keep decoded pieces while lanes read their sections.

A row group or CSV file can only be read from its start, and a shuffled pass reads its sections in
random order. So each piece is decoded once, and kept in memory or in an unnamed file on the local
disk until all its sections were read.
"""

import bisect
import errno
import itertools
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from weakref import finalize

import pyarrow as pa
from pyarrow import types

from sparkdl.data.lanes import Lane
from sparkdl.data.shard import Range
from sparkdl.host.local_disk import local_disk

# Bytes of decoded pieces that are kept in memory.
MEMORY_BYTES = 256 << 20
BUFFER_BYTES = 1 << 20


class DecodedPieces:
    """Pieces that are decoded when they are first read, and removed when all rows were read.

    Args:
        read: yields the rows of a range of a piece.
        lanes: the lanes, whose rows will be read once.
        section_rows: number of rows of the sections in which they will be read.
    """

    def __init__(
        self,
        read: Callable[[Range], Iterator[pa.RecordBatch]],
        lanes: Iterable[Lane],
        section_rows: int,
    ) -> None:
        self._read = read
        self._section_rows = section_rows
        self._parts: dict[int, list[Range]] = defaultdict(list)
        self._num_left: Counter[int] = Counter()
        for lane in lanes:
            for part in lane.ranges:
                self._parts[part.piece].append(part)
                self._num_left[part.piece] += part.stop - part.start
            if lane.head:
                self._num_left[lane.ranges[0].piece] -= lane.head
        self._pieces: dict[int, _Decoded] = {}
        self._memory_bytes = 0

    def rows(self, section: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a section, each section once.

        Raises:
            OSError: if the local disk is full, with advice.
        """
        piece = section.piece
        if piece not in self._pieces:
            self._pieces[piece] = self._decoded(piece)
            self._memory_bytes += self._pieces[piece].memory_bytes
        yield from self._pieces[piece].rows(section.start, section.stop)
        self._num_left[piece] -= section.stop - section.start
        if not self._num_left[piece]:
            self._memory_bytes -= self._pieces.pop(piece).memory_bytes

    def _decoded(self, piece: int) -> "_Decoded":
        parts = self._parts[piece]
        extent = Range(piece, min(p.start for p in parts), max(p.stop for p in parts))
        cuts = {cut for p in parts for cut in range(p.start, p.stop, self._section_rows)}
        cuts |= {part.stop for part in parts}
        free_bytes = MEMORY_BYTES - self._memory_bytes
        return _Decoded(self._read(extent), extent.start, sorted(cuts), free_bytes)


class _Decoded:
    """A decoded piece, in memory or in an unnamed file.

    Args:
        batches: the rows.
        start: number of the first row.
        cuts: where sections begin and end, in order.
        max_bytes: bytes that the piece may take in memory.

    Attributes:
        memory_bytes: bytes that it takes in memory.
    """

    def __init__(
        self, batches: Iterator[pa.RecordBatch], start: int, cuts: Sequence[int], max_bytes: int
    ) -> None:
        self.memory_bytes = 0
        in_memory: list[pa.RecordBatch] = []
        self._batches: list[pa.RecordBatch] | _BatchFile = in_memory
        self._ends: list[int] = []
        for batch in batches:
            in_memory.append(batch)
            self.memory_bytes += batch.get_total_buffer_size()
            if self.memory_bytes > max_bytes:
                parts = _cut_at(itertools.chain(in_memory, batches), start, cuts)
                self._batches = _BatchFile(self._with_ends(parts, start))
                self.memory_bytes = 0
                return
        list(self._with_ends(in_memory, start))

    def _with_ends(self, batches: Iterable[pa.RecordBatch], row: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            row += batch.num_rows
            self._ends.append(row)
            yield batch

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield rows `start <= i < stop`."""
        number = bisect.bisect_right(self._ends, start)
        while start < stop:
            batch, end = self._batches[number], self._ends[number]
            yield batch.slice(start - end + batch.num_rows, min(stop, end) - start)
            start, number = end, number + 1


def _cut_at(
    batches: Iterable[pa.RecordBatch], start: int, cuts: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in batches that also end at `cuts`; the first row is `start`."""
    for batch in batches:
        stop = start + batch.num_rows
        inner = cuts[bisect.bisect_right(cuts, start) : bisect.bisect_left(cuts, stop)]
        for begin, end in itertools.pairwise([start, *inner, stop]):
            yield batch.slice(begin - start, end - begin)
        start = stop


class _BatchFile:
    """Batches in an unnamed file on the local disk; each is read at once.

    Args:
        batches: batches of one schema, at least one.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        first = next(batches)
        self._schema = first.schema
        self._has_dictionary = any(_has_dictionary(kind) for kind in first.schema.types)
        self._ends = [0]
        self._file = tempfile.TemporaryFile(dir=local_disk(), buffering=BUFFER_BYTES)  # noqa: SIM115
        finalize(self, self._file.close)
        try:
            for batch in itertools.chain([first], batches):
                message = _with_dictionaries(batch) if self._has_dictionary else batch.serialize()
                self._file.write(message)
                self._ends.append(self._ends[-1] + message.size)
            self._file.flush()
        except OSError as exc:
            with suppress(OSError):  # Closing it writes again what did not fit.
                self._file.close()
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OSError(exc.errno, f"{exc.strerror}: {_advice()}") from exc
            raise

    def __getitem__(self, number: int) -> pa.RecordBatch:
        begin, end = self._ends[number : number + 2]
        message = pa.py_buffer(os.pread(self._file.fileno(), end - begin, begin))
        if self._has_dictionary:
            return pa.ipc.open_stream(message).read_next_batch()
        return pa.ipc.read_record_batch(message, self._schema)


def _has_dictionary(kind: pa.DataType) -> bool:
    children = (kind.field(i).type for i in range(kind.num_fields))
    return types.is_dictionary(kind) or any(map(_has_dictionary, children))


def _with_dictionaries(batch: pa.RecordBatch) -> pa.Buffer:
    """Return a batch as a stream of its own: the message of a batch leaves dictionaries out."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _advice() -> str:
    return (
        f"no room in {local_disk()} for the decoded rows of row groups or files that are shuffled. "
        "Free space there, set spark.local.dir to a larger disk, or write more and smaller row "
        "groups or files, of which 128 are kept at a time"
    )
