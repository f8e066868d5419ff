"""Runs in a Spark task. Messages in files that have no name.

The kernel frees them when the last process that has them open or mapped ends, however it ends.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

__all__ = ["Spool", "local_disk"]

FILE_BYTES = 16 << 20
ALIGNMENT = 64  # What Arrow's format recommends for buffers.

# Buffers in one call of the system, see IOV_MAX in sysconf(3).
MOST_PARTS = 1024


def local_disk() -> Path:
    """Where Spark lets this executor write its own temporary files, else the system's place."""
    for name in ("LOCAL_DIRS", "SPARK_LOCAL_DIRS"):  # YARN; standalone and Kubernetes.
        for folder in os.environ.get(name, "").split(","):
            if folder and os.access(folder, os.W_OK):
                return Path(folder)
    return Path(tempfile.gettempdir())


class _File:
    """One nameless file, which messages are written into one after the other.

    Attributes:
        number: among those of its spool.
        descriptor: of the open file.
        used_bytes: of the messages in it that are still needed.
        is_kept: the other side keeps some of them for good.
    """

    def __init__(self, number: int, folder: Path, size: int) -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.truncate(file.fileno(), size)  # Room to map; it takes none on the disk yet.
            self.descriptor = os.dup(file.fileno())
        self.number, self.size = number, size
        self.end = self.used_bytes = 0
        self.is_kept = False

    def has_room(self, length: int) -> bool:
        return self.end + length + ALIGNMENT <= self.size

    def write(self, views: list[memoryview], length: int) -> int:
        """Write a message and return its offset."""
        offset = at = self.end + -self.end % ALIGNMENT
        while views:
            written = os.pwritev(self.descriptor, views[:MOST_PARTS], at)
            at += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]
        self.end = offset + length
        self.used_bytes += length
        return offset


class Spool:
    """Writes messages one after the other, into files that it uses again when they are free."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, _File] = {}
        self._current: _File | None = None
        self._count = 0

    def write(self, parts: Sequence["bytes | pa.Buffer"]) -> tuple[int, int, int | None]:
        """Write a message that consists of `parts`.

        Returns:
            The file's number, the offset in it, and the file's descriptor if it is a new one.

        Raises:
            OSError: the disk is full, say; the message says what to do.
        """
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        length = sum(map(len, views))
        count = self._count
        try:
            file = self._file_for(length)
            offset = file.write(views, length)
        except OSError as exc:
            raise OSError(
                exc.errno,
                f"{exc.strerror}: no room for more of this rank's rows. Free some, point "
                "spark.local.dir to a larger disk, use more workers, or pass cache=False to "
                "data.dataset for a single pass",
                str(self._folder),
            ) from exc
        return file.number, offset, file.descriptor if self._count > count else None

    def _file_for(self, length: int) -> _File:
        """The current file, else one that is free, else a new one."""
        if self._current and self._current.has_room(length):
            return self._current
        if self._current and self._current.is_kept:
            self._forget(self._current)
        for file in self._files.values():
            if not file.used_bytes and not file.is_kept:
                file.end = 0
                if file.has_room(length):
                    self._current = file
                    return file
        self._current = _File(self._count, self._folder, max(FILE_BYTES, length + ALIGNMENT))
        self._files[self._count] = self._current
        self._count += 1
        return self._current

    def keep(self, number: int) -> None:
        """Messages of this file are kept for good: never write over them."""
        if file := self._files.get(number):
            file.is_kept = True
            if file is not self._current:
                self._forget(file)

    def free(self, number: int, length: int) -> None:
        """So many bytes of messages in this file are not needed any more."""
        if file := self._files.get(number):
            file.used_bytes -= length

    def _forget(self, file: _File) -> None:
        os.close(file.descriptor)  # What is mapped stays.
        del self._files[file.number]

    def close(self) -> None:
        """Close all files."""
        for file in list(self._files.values()):
            self._forget(file)
