"""Runs anywhere. Read files that grow by whole lines: JSON lines and logs.

A file of JSON lines holds one JSON object per line and has one writer, which only appends. A
writer that is killed may leave half a line at the end; every reader here skips such a torn line.
The readers go through `storage`, so a file may be on a local disk or on a remote store.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from sparkdl import storage

__all__ = ["MAX_LINES_BYTES", "Line", "LogTail", "Tail", "read_lines"]

Line = dict[str, Any]

# The most that `LogTail.lines` returns of one log at once. A trial that prints faster is skipped
# over: its log file has everything, and the driver stays fast and small.
MAX_LINES_BYTES = 1 << 14

PIECE_BYTES = 1 << 20


def read_lines(url: str) -> list[Line]:
    """Return the JSON object of every whole line of a file, oldest first.

    Args:
        url: the file. A file that does not exist has no lines.
    """
    try:
        lines = storage.read(url).split(b"\n")
    except FileNotFoundError:
        return []
    return [value for line in lines if (value := _parse(line)) is not None]


def _parse(line: bytes) -> Line | None:
    # The first part of a JSON object is never valid JSON: a torn line cannot be taken for a whole.
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class Tail:
    """Read the lines that were added to one or many files of JSON lines since the last call.

    Example:
        >>> tail = Tail()
        >>> storage.write("memory://doc/a.jsonl", '{"step": 1}\\n{"step": 2}\\n{"st')
        >>> tail.read(["memory://doc/a.jsonl", "memory://doc/missing.jsonl"])
        [('memory://doc/a.jsonl', {'step': 1}), ('memory://doc/a.jsonl', {'step': 2})]
        >>> tail.read(["memory://doc/a.jsonl"])
        []
    """

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}

    def read(self, urls: Iterable[str]) -> list[tuple[str, Line]]:
        """Return the new whole lines, each with the URL of its file.

        A remote store is asked for all files at once. A line without an end is returned by the
        call after its end was written. A file that another file has replaced, as a new attempt at
        a trial replaces its metrics, is read from its start by the next call.

        Args:
            urls: the files; those that do not exist yet have no lines.
        """
        offsets = {url: self._offsets.get(url, 0) for url in urls}
        values = []
        for url, data in storage.read_new(offsets).items():
            whole = data[: data.rfind(b"\n") + 1]
            try:
                lines = [json.loads(line) for line in whole.splitlines()]
            except ValueError:  # The offset is not at the start of a line: the file was replaced.
                self._offsets[url] = 0
                continue
            self._offsets[url] = offsets[url] + len(whole)
            values += [(url, line) for line in lines]
        return values

    def forget(self, url: str) -> None:
        """Read this file from its start the next time: another file will replace it."""
        self._offsets.pop(url, None)


class LogTail:
    """Read the text that was added to one log file since the last call.

    Args:
        url: the file, which need not exist yet.

    Attributes:
        url: the file.
        offset: number of bytes that were read or skipped.
        skipped: number of bytes that `lines` has skipped; the caller may reset it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.offset = 0
        self.skipped = 0
        self._partial = b""
        self._is_torn = False  # The next line begins in the skipped part.

    def pieces(self) -> Iterator[str]:
        """Return all new text, in pieces that fit into memory."""
        while data := self._read(PIECE_BYTES):
            yield data.decode(errors="replace")

    def lines(self, last: bool = False) -> list[str]:
        """Return the new whole lines; of a large amount of new text only the newest lines.

        Args:
            last: also return a last line without an end.
        """
        self._skip()
        lines = (self._partial + self._read(MAX_LINES_BYTES * 2)).split(b"\n")
        if self._is_torn and len(lines) > 1:
            self.skipped += len(lines.pop(0)) + 1
            self._is_torn = False
        self._partial = b"" if last else lines.pop()[-MAX_LINES_BYTES:]
        return [line.decode(errors="replace").rstrip("\r") for line in lines if line or not last]

    def _read(self, size: int) -> bytes:
        try:
            data = storage.read(self.url, self.offset, size)
        except FileNotFoundError:
            return b""
        self.offset += len(data)
        return data

    def _skip(self) -> None:
        try:
            size = storage.size(self.url)
        except FileNotFoundError:
            return
        if size - self.offset > 2 * MAX_LINES_BYTES:
            self.skipped += size - MAX_LINES_BYTES - self.offset
            self.offset = size - MAX_LINES_BYTES
            self._partial = b""
            self._is_torn = True
