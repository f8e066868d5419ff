"""Runs in the training process. Copy remote files to the local disk, for TensorFlow."""

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import IO, Any

from sparkdl import context
from sparkdl.data.readers.exact_reads import PART_BYTES, ExactFile
from sparkdl.files import storage
from sparkdl.host.local_disk import local_disk

# Bytes that are in memory while they are copied; the requests for them run at the same time.
CHUNK_BYTES = 4 * PART_BYTES

# The newest copies are never removed: TensorFlow may be about to open one of them.
MIN_COPIES = 16
# Each copy is an open file, and many systems limit these to 1024 for each process.
MAX_COPIES = 512
# Share of the disk that stays free. YARN stops using a disk that is 90 % full.
FREE_SHARE = 0.12


@dataclass
class _Copy:
    """A file with holes, which take no space, where the remote file was not needed.

    Attributes:
        file: the unnamed file.
        parts: what it has (start, stop), in order; two parts do not touch each other.
    """

    file: IO[bytes]
    parts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        return sum(stop - start for start, stop in self.parts)

    def missing_parts(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield what the copy does not have of a part."""
        for start, stop in self.parts:
            if begin < min(start, end):
                yield begin, min(start, end)
            begin = max(begin, stop)
        if begin < end:
            yield begin, end

    def add(self, begin: int, end: int) -> None:
        """Record that the copy has a part."""
        parts: list[tuple[int, int]] = []
        for start, stop in sorted([*self.parts, (begin, end)]):
            if parts and start <= parts[-1][1]:
                parts[-1] = parts[-1][0], max(stop, parts[-1][1])
            else:
                parts.append((start, stop))
        self.parts = parts


class LocalCopies:
    """Local copies of remote files, or of parts, because TensorFlow reads local files only.

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
        self._copies: dict[int, _Copy] = {}  # The copy used last is the last.
        weakref.finalize(self, _close, self._copies)
        # Bytes of the copies that are being made, which several threads do at a time.
        self._bytes_in_progress: dict[int, int] = {}
        self._max_bytes: int | None = None
        self._lock = Lock()
        self._locks = [Lock() for _ in urls]

    def path(self, number: Any, begin: int = 0, end: int | None = None) -> bytes:
        """Return the local path of a file; what is missing of a remote file is copied first.

        Args:
            number: index of the file in `urls`.
            begin, end: the bytes that will be read; by default all.

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
                copy = _Copy(tempfile.TemporaryFile(dir=local_disk()))  # noqa: SIM115 - stays open
            try:
                size = self._sizes[number]
                missing_parts = list(copy.missing_parts(begin, size if end is None else end))
                self._make_room(number, sum(stop - start for start, stop in missing_parts), copy)
                try:
                    for part in missing_parts:
                        _fetch(url, size, part, copy.file)
                finally:
                    if (
                        missing_parts or not copy.parts
                    ):  # Parts of another file must not join the first.
                        self._check(number)
                for part in missing_parts:
                    copy.add(*part)
            except BaseException:
                with self._lock:
                    self._bytes_in_progress.pop(number, None)
                with suppress(OSError):  # On a full disk, the end of the file does not fit either.
                    copy.file.close()
                raise
            with self._lock:
                self._bytes_in_progress.pop(number, None)
                self._copies[number] = copy
            # An unnamed file needs no removal, even if this process is killed.
            return f"/proc/{os.getpid()}/fd/{copy.file.fileno()}".encode()

    def _make_room(self, number: int, num_bytes: int, copy: _Copy) -> None:
        """Remove the copies that were not used for longest, until there is room for more bytes.

        Args:
            number: index of the file whose copy needs them.
            num_bytes: the bytes to make room for.
            copy: the copy, which is in use.
        """
        with self._lock:
            disk = shutil.disk_usage(local_disk())
            if self._max_bytes is None:
                self._max_bytes = disk.free // 2 // context.current().local_world_size
            num_in_progress = sum(self._bytes_in_progress.values())
            self._bytes_in_progress[number] = copy.num_bytes + num_bytes
            used = (
                num_in_progress
                + copy.num_bytes
                + sum(each.num_bytes for each in self._copies.values())
            )
            missing_parts = max(
                used + num_bytes - self._max_bytes,
                num_in_progress + num_bytes - (disk.free - int(FREE_SHARE * disk.total)),
            )
            for oldest in list(self._copies)[:-MIN_COPIES]:
                if missing_parts <= 0 and len(self._copies) < MAX_COPIES:
                    return
                removed = self._copies.pop(oldest)
                removed.file.close()
                missing_parts -= removed.num_bytes


def _close(copies: Mapping[int, _Copy]) -> None:
    for copy in copies.values():
        copy.file.close()


def _fetch(url: str, size: int, part: tuple[int, int], copy: IO[bytes]) -> None:
    """Copy a part (start, stop) of a file to the same place of its copy."""
    filesystem, path = storage.filesystem(url)
    try:
        copy.seek(part[0])
        for begin in range(*part, CHUNK_BYTES):
            end = min(begin + CHUNK_BYTES, part[1])
            with closing(ExactFile(filesystem, path, size)) as source:
                source.prefetch([(begin, end)])
                source.seek(begin)
                while source.tell() < end:
                    copy.write(source.read(min(PART_BYTES, end - source.tell())))
        copy.flush()
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                exc.errno,
                f"no room in {local_disk()} for a copy of {url}: {exc.strerror}. Free space "
                "there, set spark.local.dir to a larger disk, or write the rows as Parquet, which "
                "is read without copies",
            ) from exc
        raise
