"""Runs in a Spark task. Write messages to unnamed files.

The kernel frees an unnamed file when the last process that has it open or mapped ends, even if that
process is killed.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# Files grow, since a process that keeps all rows holds one mapping and one descriptor per file:
# 1 TiB is 1064 files. The files are sparse, so that an unused rest takes no disk.
FILE_BYTES = 16 << 20
FILES_PER_SIZE = 8
MAX_FILE_BYTES = 1 << 30
ALIGNMENT_BYTES = 64  # Recommended for buffers by Arrow's format.

# Maximum number of buffers in one system call, see IOV_MAX in sysconf(3).
MAX_PARTS = 1024


class _File:
    """An unnamed file that messages are appended to.

    Args:
        number: number of the file in its spool.
        folder: folder on the disk that holds the file.
        size: size of the file in bytes.

    Attributes:
        number: number of the file in its spool.
        size: size of the file in bytes.
        descriptor: descriptor of the open file.
        end: offset of the end of the last message.
        used_bytes: bytes of the messages that are still needed.
        is_kept: True if the training process keeps messages of this file.
    """

    def __init__(self, number: int, folder: Path, size: int) -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.truncate(
                file.fileno(), size
            )  # Sparse: the file can be mapped, but uses no disk yet.
            self.descriptor = os.dup(file.fileno())
        self.number = number
        self.size = size
        self.end = 0
        self.used_bytes = 0
        self.is_kept = False

    def has_room(self, length: int) -> bool:
        return self.end + length + ALIGNMENT_BYTES <= self.size

    def write(self, views: list[memoryview], length: int) -> int:
        """Append a message and return its offset."""
        offset = position = self.end + -self.end % ALIGNMENT_BYTES
        while views:
            written = os.pwritev(self.descriptor, views[:MAX_PARTS], position)
            position += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]
        self.end = offset + length
        self.used_bytes += length
        return offset


class Spool:
    """Write messages one after the other into files, and reuse files that are free again.

    Args:
        folder: folder on the disk that holds the files.
        keeps_all: keep all messages, and leave all files open until `keep_no_more` or `close`.
    """

    def __init__(self, folder: Path, keeps_all: bool = False) -> None:
        self._folder = folder
        self._keeps_all = keeps_all
        self._files: dict[int, _File] = {}
        self._current: _File | None = None
        self._num_created = 0

    def write(self, parts: Sequence["bytes | pa.Buffer"]) -> tuple[int, int, int | None]:
        """Write a message that consists of `parts`.

        Returns:
            The file's number, the offset in the file, and the file's descriptor if it is new.

        Raises:
            OSError: if the message cannot be written, for example because the disk is full.
        """
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        length = sum(map(len, views))
        num_before = self._num_created
        try:
            file = self._file_for(length)
            offset = file.write(views, length)
        except OSError as exc:
            raise OSError(
                exc.errno,
                f"{exc.strerror}: no room for more of this rank's rows. Free disk space, point "
                "spark.local.dir to a larger disk, or use more workers. A single pass, with "
                "cache=False in data.dataset, needs room only for the rows that wait",
                str(self._folder),
            ) from exc
        is_new = self._num_created > num_before
        return file.number, offset, file.descriptor if is_new else None

    def _file_for(self, length: int) -> _File:
        """Return the current file if it has room, otherwise a free file or a new one."""
        if self._current and self._current.has_room(length):
            return self._current
        if self._current and self._current.is_kept and not self._keeps_all:
            self._close_file(self._current)
        for file in () if self._keeps_all else self._files.values():
            if not file.used_bytes and not file.is_kept:
                file.end = 0
                if file.has_room(length):
                    self._current = file
                    return file
        size = min(FILE_BYTES << (self._num_created // FILES_PER_SIZE), MAX_FILE_BYTES)
        size = max(size, length + ALIGNMENT_BYTES)
        self._current = _File(self._num_created, self._folder, size)
        self._files[self._num_created] = self._current
        self._num_created += 1
        return self._current

    def keep(self, number: int) -> None:
        """Mark a file whose messages are kept, so that it is never overwritten."""
        if file := self._files.get(number):
            file.is_kept = True
            if file is not self._current and not self._keeps_all:
                self._close_file(file)

    def free(self, number: int, length: int) -> None:
        """Record that messages of `length` bytes in a file are no longer needed."""
        if file := self._files.get(number):
            file.used_bytes -= length

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the open files. With `keeps_all`, these are all files, by number."""
        return [file.descriptor for file in self._files.values()]

    def keep_no_more(self) -> None:
        """Keep only the messages for which `keep` was or will be called."""
        self._keeps_all = False
        for file in list(self._files.values()):
            if file.is_kept and file is not self._current:
                self._close_file(file)

    def _close_file(self, file: _File) -> None:
        os.close(file.descriptor)  # Mappings of the file stay valid.
        del self._files[file.number]

    def close(self) -> None:
        """Close all files."""
        for file in list(self._files.values()):
            self._close_file(file)
