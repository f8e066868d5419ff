"""Where it runs: T. Messages in files that have no name.

The kernel frees them when the last process that has them open or mapped ends, however it ends.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

__all__ = ["Spool", "local_disk"]

FILE_BYTES = 64 << 20
ALIGNMENT = 64  # TensorFlow takes numbers that are aligned so without a copy.

# Buffers in one call of the system, see IOV_MAX in sysconf(3).
MOST_PARTS = 1024


def local_disk() -> Path:
    """Where Spark lets this executor write its own temporary files, else the system's place."""
    for name in ("LOCAL_DIRS", "SPARK_LOCAL_DIRS"):  # YARN; standalone and Kubernetes.
        for folder in os.environ.get(name, "").split(","):
            if folder and os.access(folder, os.W_OK):
                return Path(folder)
    return Path(tempfile.gettempdir())


class Spool:
    """Writes messages one after the other, into one nameless file after the other.

    Attributes:
        descriptor: of the file that the last message is in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.descriptor = -1
        self._size = self._end = 0

    def write(self, parts: Sequence["bytes | pa.Buffer"]) -> tuple[int, bool]:
        """Write a message that consists of `parts`.

        Returns:
            Its offset in the file, and whether that is another file than before.

        Raises:
            OSError: the disk is full, say; the message says what to do.
        """
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        length = sum(map(len, views))
        is_new = self.descriptor < 0 or self._end + length + ALIGNMENT > self._size
        if is_new:
            self._open(max(FILE_BYTES, length + ALIGNMENT))
        offset = self._end + (-self._end - _before_largest(views)) % ALIGNMENT
        self._end = offset + length
        self._write(views, offset)
        return offset, is_new

    def _open(self, size: int) -> None:
        self.close()
        with tempfile.TemporaryFile(dir=self._folder) as file:
            os.truncate(file.fileno(), size)  # Room to map; it takes none on the disk yet.
            self.descriptor = os.dup(file.fileno())
        self._size, self._end = size, 0

    def _write(self, views: list[memoryview], offset: int) -> None:
        while views:
            try:
                written = os.pwritev(self.descriptor, views[:MOST_PARTS], offset)
            except OSError as exc:
                raise OSError(
                    exc.errno,
                    f"{exc.strerror}: no room for more of this rank's rows. Free some, point "
                    "spark.local.dir to a larger disk, use more workers, or pass cache=False to "
                    "data.dataset for a single pass",
                    str(self._folder),
                ) from exc
            offset += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]

    def close(self) -> None:
        """Close the file; what is mapped stays."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _before_largest(views: Sequence[memoryview]) -> int:
    """How many bytes stand before the largest part: the one that is worth aligning."""
    sizes = [len(view) for view in views]
    return sum(sizes[: sizes.index(max(sizes))]) if sizes else 0
