"""Runs on the driver and in Spark tasks. The lines of the files of a log, read in parts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import accumulate

import pyarrow as pa

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json

LINES_SCHEMA = "value binary, file string, offset long"
ENDINGS = (".jsonl", ".json")
MAX_DEPTH = 6
# Bytes of a part, and of the end of a file in which the last line break is looked for first.
PART_BYTES = 32 << 20
TAIL_BYTES = 1 << 16
LINES_AT_ONCE = 4096

HOUR = "date=%Y-%m-%d/hour=%H"
_HOUR_LENGTH = len("date=2026-11-23/hour=10")


@dataclass(frozen=True)
class LinesPart:
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
            tail = storage.read(self.url, place, min(TAIL_BYTES, self.last - place))
            rest, newline, _ = tail.partition(b"\n")
            data += rest + newline
            place += len(tail)
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


class PartReader:
    """A function for `mapInArrow` that yields the lines of the parts whose numbers it gets.

    Args:
        parts: the parts.
    """

    def __init__(self, parts: Sequence[LinesPart]) -> None:
        self._parts = parts

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the lines of the parts whose numbers are in the first column."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_part(self._parts[number])


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
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).strftime(HOUR)


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _is_before(path: str, since: str) -> bool:
    return path.startswith("date=") and path < since[: len(path)]


def time_of_hour(path: str) -> datetime | None:
    """Return the time of the folder of an hour in which a file is; None for another folder."""
    with suppress(ValueError):
        return datetime.strptime(path[:_HOUR_LENGTH], HOUR)
    return None


def file_ends(url: str, earlier_ends: Mapping[str, int], since: str) -> dict[str, int]:
    """Return the byte behind the last complete line of each file.

    Args:
        url: the folder.
        earlier_ends: the bytes that are known already, by file.
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
        name: _last_line_end(storage.join(url, name), earlier_ends.get(name, 0), sizes.get(name))
        for name in names
    }


def _remote_files(url: str, since: str) -> dict[str, int]:
    """Return the files of `log_files` with their sizes, from one listing for each first folder."""
    names = storage.list_names(url)
    has_files = any(name.endswith(ENDINGS) for name in names)
    all_sizes = storage.file_sizes(url, 1) if has_files else {}
    for name in names:
        if "." not in name and not _is_hidden(name) and not _is_before(name, since):
            sizes = storage.file_sizes(storage.join(url, name))
            all_sizes |= {f"{name}/{path}": size for path, size in sizes.items()}
    return {
        path: size
        for path, size in sorted(all_sizes.items())
        if path.endswith(ENDINGS) and not _is_before(path, since) and _is_log(path)
    }


def _is_log(path: str) -> bool:
    *folders, name = path.split("/")
    some_hidden = any(map(_is_hidden, [*folders, name]))
    return len(folders) <= MAX_DEPTH and not some_hidden and "." not in "".join(folders)


def _last_line_end(url: str, earlier_end: int, size: int | None) -> int:
    size = storage.size(url) if size is None else size
    tail = TAIL_BYTES
    while size > earlier_end:
        begin = max(earlier_end, size - tail)
        data = storage.read(url, begin, size - begin)
        end = data.rfind(b"\n") + 1
        if end == len(data) or ((begin == earlier_end or end) and _is_json(data[end:])):
            return size
        if end:
            return begin + end
        if begin == earlier_end:
            break
        tail *= 4
    return earlier_end


def _is_json(data: bytes) -> bool:
    """Return True for a last line that is complete without a line break at its end."""
    with suppress(ValueError):
        return isinstance(from_json(data), dict)
    return False
