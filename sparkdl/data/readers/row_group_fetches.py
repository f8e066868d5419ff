"""Runs in the training process. Fetch the columns of row groups, before they are decoded.

Remote stores are slow per request: a row group is read by a few large requests, and the next row
groups are asked for meanwhile.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from sparkdl.data.readers.exact_reads import ExactFile
from sparkdl.data.readers.parquet_pieces import File, ParquetPieces

CACHED_FOOTERS = 32
STREAM_BYTES = 1 << 20
REMOTE_STREAM_BYTES = 4 << 20
REMOTE_HEAD_BYTES = 128 << 10
# Bytes of row groups that a process holds at once before they are decoded.
MAX_PREFETCH_BYTES = 256 << 20

# Bytes of a value in memory by physical type; values of other types take at least 8 bytes.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}


@dataclass
class Fetched:
    """A row group that will be decoded.

    Attributes:
        footer: the footer of its file.
        row_bytes: about the bytes of a row in memory.
        chunks: where its columns are in the file (start, stop).
        exact: the remote file with the columns in memory; None if they are read when decoded.
    """

    footer: pq.FileMetaData
    row_bytes: int
    chunks: Sequence[tuple[int, int]]
    exact: ExactFile | None = None

    @property
    def num_bytes(self) -> int:
        return sum(stop - start for start, stop in self.chunks)


class RowGroupFetches:
    """The row groups of a reader; all that are held in memory together are bounded.

    Args:
        pieces: the row groups.

    Attributes:
        held_bytes: bytes of the row groups that are held in memory.
    """

    def __init__(self, pieces: ParquetPieces) -> None:
        self.held_bytes = 0
        self._pieces = pieces
        self._footer = lru_cache(CACHED_FOOTERS)(self._read_footer)
        self._lock = Lock()
        self._file_locks: dict[int, Lock] = {}

    def is_remote(self, piece: int) -> bool:
        """Return True if a row group is in a store that is read by fsspec."""
        file = self._pieces.files[self._pieces.groups[piece].file]
        return isinstance(file.files.arrow, pa.fs.PyFileSystem)

    def fetch(
        self, piece: int, names: Sequence[str], unread: dict[int, list[int]], is_whole: bool
    ) -> Fetched:
        """Return where the columns of a row group are, and of a remote one the columns themselves.

        Args:
            piece: number of the row group.
            names: the columns to read.
            unread: the number of row groups still to fetch, and of those begun, by file. A remote
                file is checked before the first of several, and after the last.
            is_whole: False if only the head of the row group will be read.
        """
        group = self._pieces.groups[piece]
        file = self._pieces.files[group.file]
        # The other threads wait for the same answer of the store.
        lock = self._file_locks.setdefault(group.file, Lock())
        counts = unread.setdefault(group.file, [1, 0])
        with lock:
            is_alone = counts[0] <= 1 and is_whole
            if counts[1] == 0 and self.is_remote(piece) and not is_alone:
                file.files.check(file.number)
            counts[1] += 1
        try:
            with lock:
                footer = self._footer(group.file)
            row_group = footer.row_group(group.number)
            if self._pieces.filter is None and row_group.num_rows != group.rows:
                raise OSError(f"it has {row_group.num_rows} rows, and had {group.rows} before")
            stored = {name for name in self._pieces.columns_to_read(names) if name not in file.keys}
            fetched = Fetched(footer, *_columns_of(row_group, stored))
            if is_whole and self.is_remote(piece):
                self._hold(file, fetched, MAX_PREFETCH_BYTES // 2)
                self._check_last(file, counts, lock, fetched)
            return fetched
        except (pa.ArrowException, OSError, IndexError) as exc:
            file.files.check(file.number)
            raise ValueError(f"{file.url}, row group {group.number}: {exc}") from exc

    def _check_last(self, file: File, counts: list[int], lock: Any, fetched: Fetched) -> None:
        """Check a remote file when the last of its row groups has been fetched."""
        with lock:
            counts[0] -= 1
            is_last = counts[0] <= 0
        if is_last:
            try:
                file.files.check(file.number)
            except BaseException:
                self.release(fetched)
                raise

    def _hold(self, file: File, fetched: Fetched, max_bytes: int) -> None:
        """Read the columns of a row group, if all that are held have at most `max_bytes` bytes."""
        with self._lock:
            if self.held_bytes + fetched.num_bytes > max_bytes:
                return
            self.held_bytes += fetched.num_bytes
        fetched.exact = ExactFile(file.files.filesystem, file.path, file.files.sizes[file.number])
        try:
            fetched.exact.prefetch(fetched.chunks)
        except BaseException:
            self.release(fetched)
            raise

    def release(self, fetched: Fetched) -> None:
        """Forget the columns of a row group."""
        if fetched.exact is not None:
            fetched.exact.close()
            fetched.exact = None
            with self._lock:
                self.held_bytes -= fetched.num_bytes

    @contextmanager
    def open_group(
        self, file: File, fetched: Fetched, is_head: bool
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield an open file, and how pyarrow reads columns of a row group in it.

        Remote stores are slow per request: a row group is read by a few large requests. Local
        files, very large row groups, and those of which only the head is needed are read as a
        stream.
        """
        if not isinstance(file.files.arrow, pa.fs.PyFileSystem):
            is_stream = file.files.is_local or is_head
            is_buffered = not is_stream and fetched.num_bytes <= MAX_PREFETCH_BYTES
            with file.files.arrow.open_input_file(file.path) as source:
                file.files.check(file.number)
                yield source, {"pre_buffer": is_buffered, "buffer_size": STREAM_BYTES}
            return
        try:
            is_late = fetched.exact is None and not is_head
            if is_late:
                self._hold(file, fetched, MAX_PREFETCH_BYTES)
            streams = REMOTE_HEAD_BYTES if is_head else REMOTE_STREAM_BYTES
            buffer_size = STREAM_BYTES if fetched.exact else streams
            exact = fetched.exact or ExactFile(
                file.files.filesystem, file.path, file.files.sizes[file.number]
            )
            with closing(exact):
                yield (
                    pa.PythonFile(exact, mode="r"),
                    {
                        "pre_buffer": False,
                        "buffer_size": buffer_size,
                    },
                )
            if is_late:
                file.files.check(file.number)
        finally:
            self.release(fetched)

    def _read_footer(self, number: int) -> pq.FileMetaData:
        file = self._pieces.files[number]
        with file.files.arrow.open_input_file(file.path) as source:
            return pq.read_metadata(source)


def _columns_of(group: pq.RowGroupMetaData, names: set[str]) -> tuple[int, list[tuple[int, int]]]:
    """Return the approximate bytes of a row in memory, and where its columns are in the file.

    Args:
        group: the row group.
        names: names of the columns.
    """
    memory, chunks = 0, []
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema.split(".", 1)[0] in names:
            # Encoded values may be much smaller than the values in memory.
            width = _WIDTHS.get(column.physical_type, 8)
            memory += max(column.total_uncompressed_size, column.num_values * width)
            start = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset:
                start = min(start, column.dictionary_page_offset)
            chunks.append((start, start + column.total_compressed_size))
    return memory // max(group.num_rows, 1), chunks
