"""Runs anywhere. Read parts of files in remote stores: no more bytes and requests than needed.

The file objects of fsspec read ahead, 50 MiB in the case of S3, which is right for a file that is
read from its start to its end. A reader of Parquet jumps from column to column, and would read
most of a file several times.
"""

import io
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.fs

# Requests of one `prefetch` run at the same time; a larger part is read by several of them.
PART_BYTES = 16 << 20
# Parts closer to each other are read at once: a request takes as long as some 100 KB.
MAX_GAP_BYTES = 32 << 10
READ_AHEAD_BYTES = 8 << 20


class ExactFile(io.RawIOBase):
    """A file of a remote store that is read at any position, without a request for its size.

    Args:
        filesystem: the fsspec filesystem.
        path: path of the file.
        size: size of the file in bytes.
        ahead_bytes: bytes to read at least, for files that are read from start to end.
    """

    def __init__(self, filesystem: Any, path: str, size: int, ahead_bytes: int = 0) -> None:
        super().__init__()
        self._filesystem = filesystem
        self._path = path
        self._size = size
        self._ahead_bytes = ahead_bytes
        self._position = 0
        self._parts: dict[tuple[int, int], bytes] = {}
        self._file: Any = None

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Read the ranges (start, stop) at once, in parallel, and keep them for later reads."""
        parts = _parts_of(merge_ranges(ranges))
        starts, stops = [start for start, _ in parts], [stop for _, stop in parts]
        if _is_async(self._filesystem):
            paths = [self._path] * len(parts)
            contents = self._filesystem.cat_ranges(paths, starts, stops, on_error="raise")
        else:
            contents = [self._fetch(start, stop) for start, stop in parts]
        for (start, _), content in zip(parts, contents, strict=True):
            self._parts[start, start + len(content)] = content

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, fewer than `size` only at the end of the file."""
        rest = max(self._size - self._position, 0)
        size = rest if size is None or size < 0 else min(size, rest)
        pieces = []
        while size:
            piece = self._read_some(size)
            if not piece:
                raise OSError(f"{self._path} is shorter than the {self._size} bytes expected")
            pieces.append(piece)
            self._position += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Close the file and forget what was read."""
        self._parts.clear()
        if self._file is not None:
            self._file.close()
        super().close()

    def _read_some(self, size: int) -> bytes:
        position = self._position
        for (start, stop), content in self._parts.items():
            if start <= position < stop:
                return content[position - start : position - start + size]
        if size >= self._ahead_bytes:
            return self._fetch(position, position + size)
        content = self._fetch(position, min(position + self._ahead_bytes, self._size))
        self._parts = {(position, position + len(content)): content}
        return content[:size]

    def _fetch(self, start: int, stop: int) -> bytes:
        if _is_async(self._filesystem):  # Stores that are asked by HTTP.
            data: bytes = self._filesystem.cat_file(self._path, start=start, end=stop)
            return data
        if self._file is None:
            self._file = _open(self._filesystem, self._path)
        self._file.seek(start)
        content: bytes = self._file.read(stop - start)
        return content


class _ExactHandler(pyarrow.fs.FSSpecHandler):  # type: ignore[misc]
    """Let pyarrow open files by `ExactFile`.

    Args:
        filesystem: the fsspec filesystem.
        sizes: the sizes of files that are known, by path.
    """

    def __init__(self, filesystem: Any, sizes: Mapping[str, int]) -> None:
        super().__init__(filesystem)
        self._sizes = sizes

    def open_input_file(self, path: str) -> pa.PythonFile:
        """Open a file for reads at any position."""
        return pa.PythonFile(ExactFile(self.fs, path, self._size(path)), mode="r")

    def open_input_stream(self, path: str) -> pa.PythonFile:
        """Open a file that is read from start to end."""
        return pa.PythonFile(ExactFile(self.fs, path, self._size(path), READ_AHEAD_BYTES), mode="r")

    def _size(self, path: str) -> int:
        return self._sizes[path] if path in self._sizes else int(self.fs.size(path))


def arrow_filesystem(filesystem: Any, sizes: Mapping[str, int]) -> pyarrow.fs.FileSystem:
    """Return a remote store as a pyarrow filesystem.

    Args:
        filesystem: the fsspec filesystem.
        sizes: the sizes of the files that will be read, by path; others are asked for.
    """
    inner = getattr(filesystem, "fs", None)
    if isinstance(inner, pyarrow.fs.FileSystem):  # HDFS: fsspec itself uses pyarrow.
        return inner
    return pyarrow.fs.PyFileSystem(_ExactHandler(filesystem, sizes))


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges (start, stop) in order, with those joined that nearly touch each other.

    Example:
        >>> merge_ranges([(200_000, 300_000), (0, 100), (120, 500)])
        [(0, 500), (200000, 300000)]
    """
    result: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if result and start - result[-1][1] <= MAX_GAP_BYTES:
            result[-1] = result[-1][0], max(stop, result[-1][1])
        else:
            result.append((start, stop))
    return result


def _parts_of(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [
        (begin, min(begin + PART_BYTES, stop))
        for start, stop in ranges
        for begin in range(start, stop, PART_BYTES)
    ]


def _is_async(filesystem: Any) -> bool:
    return bool(getattr(filesystem, "async_impl", False))


def _open(filesystem: Any, path: str) -> Any:
    try:
        return filesystem.open(path, "rb", cache_type="none")
    except TypeError:  # Not every filesystem has caches.
        return filesystem.open(path, "rb")
