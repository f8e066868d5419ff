"""Runs on the driver and in Spark tasks. A folder of JSON lines as a source for Spark.

Spark's own source of a stream of files reads a file once, when it appears. The files of an
inference log grow for an hour, and lie on any fsspec URL: this source remembers how far each file
was read.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from sparkdl import storage
from sparkdl.jsonl import from_json

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as CanEnd
except ImportError:  # Spark 4.1 reads all that there is in one batch.

    class CanEnd:  # type: ignore[no-redef]
        """A source that can end."""


__all__ = ["FORMAT", "CanEnd", "LinesPart", "LogFolder", "LogFolderStream", "hour_of", "log_files"]

FORMAT = "sparkdl_log"
ENDINGS = (".jsonl", ".json")
MAX_DEPTH = 6
# Bytes of a part, and of the end of a file in which the last line break is looked for first.
PART_BYTES = 32 << 20
TAIL_BYTES = 1 << 16
LINES_AT_ONCE = 4096
# Files of hours so long before the newest one are no longer looked at.
KEPT = timedelta(days=3)

_HOUR = "date=%Y-%m-%d/hour=%H"
_HOUR_LENGTH = len("date=2026-11-23/hour=10")

# The bytes read of each file, and the folder before which all files were read.
_Offset = dict[str, Any]


class LogFolder(DataSource):  # type: ignore[misc]
    """The lines of the files below a folder.

    The option `path` is its path or fsspec URL. A stream leaves out the folders of hours before the
    option `since`, such as `date=2026-11-23/hour=10`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema of the lines: their content and their place."""
        return "value binary, file string, offset long"

    def reader(self, schema: Any) -> "LogFolderRead":
        """Return the reader of all lines that there are."""
        return LogFolderRead(self.options["path"])

    def streamReader(self, schema: Any) -> "LogFolderStream":
        """Return the reader of the stream."""
        return LogFolderStream(self.options["path"], self.options.get("since", ""))


@dataclass
class LinesPart(InputPartition):  # type: ignore[misc]
    """The lines that begin in a range of a file.

    Attributes:
        url: the file.
        start, end: the first byte of the range, and the byte behind its last one.
        last: the byte behind the last line of the file.
        is_first: a line begins at `start`.
    """

    url: str
    start: int
    end: int
    last: int
    is_first: bool

    def lines(self) -> list[tuple[int, bytes]]:
        """Return the lines, each with the place of its first byte."""
        begin = self.start - (not self.is_first)
        data = storage.read(self.url, begin, self.end - begin)
        if not self.is_first:
            before, newline, data = data.partition(b"\n")
            begin += len(before) + len(newline)
        place = self.end
        while data and not data.endswith(b"\n") and place < self.last:
            more = storage.read(self.url, place, min(TAIL_BYTES, self.last - place))
            rest, newline, _ = more.partition(b"\n")
            data += rest + newline
            place += len(more)
        lines = data.split(b"\n")
        places = accumulate((len(line) + 1 for line in lines), initial=begin)
        return [(first, line) for first, line in zip(places, lines, strict=False) if line.strip()]


def parts(url: str, starts: Mapping[str, int], ends: Mapping[str, int]) -> list[LinesPart]:
    """Return the parts of the files between two numbers of bytes."""
    return [
        LinesPart(
            storage.join(url, name),
            begin,
            min(begin + PART_BYTES, last),
            last,
            begin == starts.get(name, 0),
        )
        for name, last in ends.items()
        for begin in range(starts.get(name, 0), last, PART_BYTES)
    ]


def read_part(part: LinesPart) -> Iterator[pa.RecordBatch]:
    """Yield the lines of a part."""
    lines = part.lines()
    for first in range(0, len(lines), LINES_AT_ONCE):
        some = lines[first : first + LINES_AT_ONCE]
        columns = {
            "value": pa.array([line for _, line in some], pa.binary()),
            "file": pa.array([part.url] * len(some), pa.string()),
            "offset": pa.array([offset for offset, _ in some], pa.int64()),
        }
        yield pa.RecordBatch.from_pydict(columns)


class LogFolderRead(DataSourceReader):  # type: ignore[misc]
    """The reader of all lines that there are.

    Args:
        url: the folder.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def partitions(self) -> list[Any]:
        """Return the parts of all files."""
        return parts(self._url, {}, file_ends(self._url, {}, ""))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the lines of a part."""
        return read_part(partition)


class LogFolderStream(DataSourceStreamReader, CanEnd):  # type: ignore[misc]
    """The reader of the stream.

    Args:
        url: the folder.
        since: folders of earlier hours are left out.
    """

    def __init__(self, url: str, since: str = "") -> None:
        self._url = url
        self._since = since
        self._ends_at_once = False
        self._last: dict[str, int] | None = None

    def initialOffset(self) -> _Offset:
        """Return the offset of a stream that starts."""
        return {"since": self._since, "files": {}}

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what there is at the next call, and nothing that comes later."""
        self._ends_at_once = True

    def latestOffset(self, start: Any = None, limit: Any = None) -> _Offset:
        """Return the offset behind the last line of each file."""
        start = start or self.initialOffset()
        since, known = start["since"], start["files"]
        found = self._last
        if found is None:
            found = file_ends(self._url, known, since)
            if self._ends_at_once:
                self._last = found
        files = {**known, **{n: max(end, known.get(n, 0)) for n, end in found.items()}}
        # A server whose clock is wrong writes to the folder of an hour that has not come yet.
        now = hour_of(int(time.time() * 1000))
        newest = max((name for name in known if _is_hour(name) and name < f"{now}0"), default="")
        if newest:
            hour = datetime.strptime(newest[:_HOUR_LENGTH], _HOUR)
            since = max(since, (hour - KEPT).strftime(_HOUR))
        kept = {
            name: end
            for name, end in files.items()
            if end != known.get(name) or not _is_hour(name) or name >= since
        }
        return {"since": since, "files": kept}

    def partitions(self, start: Any, end: Any) -> list[Any]:
        """Return the parts of the files between two offsets."""
        return parts(self._url, start["files"], end["files"])

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the lines of a part."""
        return read_part(partition)


# ---- files


def log_files(url: str, since: str = "", prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the names of the files of JSON lines below a folder, relative to it.

    Args:
        url: the folder.
        since: folders of earlier hours are left out.
        prefix: the folder below `url` to look into.
        depth: its depth.
    """
    for name in storage.list_names(storage.join(url, prefix) if prefix else url):
        path = f"{prefix}/{name}" if prefix else name
        if _is_hidden(name) or _is_before(path, since):
            continue
        if name.endswith(ENDINGS):
            yield path
        elif depth < MAX_DEPTH and "." not in name:
            yield from log_files(url, since, path, depth + 1)


def hour_of(time_ms: int) -> str:
    """Return the folder of a time.

    Example:
        >>> hour_of(0)
        'date=1970-01-01/hour=00'
    """
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).strftime(_HOUR)


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _is_before(path: str, since: str) -> bool:
    return path.startswith("date=") and path < since[: len(path)]


def _is_hour(path: str) -> bool:
    with suppress(ValueError):
        return bool(datetime.strptime(path[:_HOUR_LENGTH], _HOUR))
    return False


def file_ends(url: str, known: Mapping[str, int], since: str) -> dict[str, int]:
    """Return the byte behind the last complete line of each file.

    Args:
        url: the folder.
        known: the bytes that are known already.
        since: see `log_files`.
    """
    sizes: dict[str, int] = {}
    names: Iterable[str]
    if storage.is_local(url):
        # Only the opening of a file asks an NFS server for its present size.
        names = log_files(url, since)
    else:
        names = sizes = _remote_files(url, since)
    return {
        name: _last_line_end(storage.join(url, name), known.get(name, 0), sizes.get(name))
        for name in names
    }


def _remote_files(url: str, since: str) -> dict[str, int]:
    """Return the files of `log_files` with their sizes, from one listing for each first folder."""
    names = storage.list_names(url)
    has_files = any(name.endswith(ENDINGS) for name in names)
    found = storage.file_sizes(url, 1) if has_files else {}
    for name in names:
        if "." not in name and not _is_hidden(name) and not _is_before(name, since):
            sizes = storage.file_sizes(storage.join(url, name))
            found |= {f"{name}/{path}": size for path, size in sizes.items()}
    return {
        path: size
        for path, size in sorted(found.items())
        if path.endswith(ENDINGS) and not _is_before(path, since) and _is_log(path)
    }


def _is_log(path: str) -> bool:
    *folders, name = path.split("/")
    some_hidden = any(map(_is_hidden, [*folders, name]))
    return len(folders) <= MAX_DEPTH and not some_hidden and "." not in "".join(folders)


def _last_line_end(url: str, known: int, size: int | None) -> int:
    size = storage.size(url) if size is None else size
    tail = TAIL_BYTES
    while size > known:
        begin = max(known, size - tail)
        data = storage.read(url, begin, size - begin)
        end = data.rfind(b"\n") + 1
        if end == len(data) or ((begin == known or end) and _is_json(data[end:])):
            return size
        if end:
            return begin + end
        if begin == known:
            break
        tail *= 4
    return known


def _is_json(data: bytes) -> bool:
    """Return True for a last line that is complete without a line break at its end."""
    with suppress(ValueError):
        return isinstance(from_json(data), dict)
    return False
