"""Runs in the training process. Copy remote files to the local disk, for TensorFlow."""

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from threading import Lock
from typing import IO, Any

from sparkdl import context, storage
from sparkdl.data.dataframe.spool import local_disk
from sparkdl.data.readers.exact_reads import ExactFile

__all__ = ["LocalCopies"]

CHUNK_BYTES = 16 << 20

# The newest copies are never removed: TensorFlow may be about to open one of them.
MIN_COPIES = 16
# Each copy is an open file, and many systems limit these to 1024 for each process.
MAX_COPIES = 512
# Share of the disk that stays free. YARN stops using a disk that is 90 % full.
FREE_SHARE = 0.12


class LocalCopies:
    """Local copies of remote files, because TensorFlow reads local files only.

    The copies, at most 512, are in Spark's folder for temporary files. Those of all ranks of a host
    take at most half of the space that is free at the first copy; the copies that were not used for
    longest are removed before that. All are removed when the process ends.

    Args:
        urls: the files.
        sizes: their sizes in bytes.
        check: called with the index of a file before its content is used or copied; raises an
            error if the file is not the one that was listed. A copy that exists is used as it is.
    """

    def __init__(
        self, urls: Sequence[str], sizes: Sequence[int], check: Callable[[int], None]
    ) -> None:
        self._urls = urls
        self._sizes = sizes
        self._check = check
        self._copies: dict[int, IO[bytes]] = {}  # The copy used last is the last.
        weakref.finalize(self, _close, self._copies)
        self._max_bytes: int | None = None
        self._lock = Lock()
        self._locks = [Lock() for _ in urls]

    def path(self, number: Any) -> bytes:
        """Return the local path of a file; a remote file is copied on the first call.

        Args:
            number: index of the file in `urls`.

        Raises:
            OSError: if the local disk is full, with advice.
            ValueError: if the file has changed, see `check`.
        """
        number = int(number)
        url = self._urls[number]
        if storage.is_local(url):
            self._check(number)
            return os.fsencode(storage.local_path(url))
        with self._locks[number]:
            with self._lock:
                copy = self._copies.pop(number, None)
            if copy is None:
                self._check(number)
                self._make_room(self._sizes[number])
                copy = _copy(url, self._sizes[number])
            with self._lock:
                self._copies[number] = copy
            # An unnamed file needs no removal, even if this process is killed.
            return f"/proc/{os.getpid()}/fd/{copy.fileno()}".encode()

    def _make_room(self, num_bytes: int) -> None:
        """Remove the copies that were not used for longest, until there is room for a new one."""
        with self._lock:
            disk = shutil.disk_usage(local_disk())
            if self._max_bytes is None:
                self._max_bytes = disk.free // 2 // context.current().local_world_size
            used = sum(self._sizes[number] for number in self._copies)
            missing = max(
                used + num_bytes - self._max_bytes,
                num_bytes - (disk.free - int(FREE_SHARE * disk.total)),
            )
            for number in list(self._copies)[:-MIN_COPIES]:
                if missing <= 0 and len(self._copies) < MAX_COPIES:
                    return
                self._copies.pop(number).close()
                missing -= self._sizes[number]


def _close(copies: Mapping[int, IO[bytes]]) -> None:
    for copy in copies.values():
        copy.close()


def _copy(url: str, size: int) -> IO[bytes]:
    folder = local_disk()
    filesystem, path = storage.filesystem(url)
    copy: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - stays open
    try:
        with closing(ExactFile(filesystem, path, size)) as source:
            shutil.copyfileobj(source, copy, CHUNK_BYTES)
        copy.flush()
    except OSError as exc:
        copy.close()
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                exc.errno,
                f"no room in {folder} for a copy of {url}: {exc.strerror}. Free space there, set "
                "spark.local.dir to a larger disk, or write the rows as Parquet, which is read "
                "without copies",
            ) from exc
        raise
    return copy
