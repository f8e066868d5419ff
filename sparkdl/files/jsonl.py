"""Runs anywhere. Read files that grow by whole lines: JSON lines and logs.

A file of JSON lines holds one JSON object per line and has one writer, which only appends. A
writer that is killed, or whose disk is full, may leave half a line; every reader here skips lines
that do not parse. The readers go through `storage`, so a file may be on a local disk or on a remote
store.

JSON has no NaN and no infinity. `to_json` writes them as `{"$float": "nan"}`, `"inf"` or `"-inf"`,
which every reader of JSON accepts, and `from_json` reads them back.
"""

import codecs
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from sparkdl.errors import RunDamagedError
from sparkdl.files import storage
from sparkdl.files.polling import Outages

Line = dict[str, Any]

# The most that `LogTail.lines` returns of one log at once. A trial that prints faster is skipped
# over: its log file has everything, and the driver stays fast and small.
MAX_LINES_BYTES = 1 << 14

PIECE_BYTES = 1 << 20

_FLOAT = "$float"


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, numbers that are not finite included.

    Example:
        >>> to_json({"loss": float("nan")})
        '{"loss": {"$float": "nan"}}'
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_all_finite(value), indent=indent, allow_nan=False)


def _all_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(float(value))}
    if isinstance(value, Mapping):
        return {name: _all_finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_all_finite(item) for item in value]
    return value


def from_json(text: str | bytes) -> Any:
    """Return the value of a text that `to_json` or any other program has written.

    Raises:
        ValueError: if the text is no JSON.

    Example:
        >>> from_json('{"loss": {"$float": "-inf"}, "step": 3}')
        {'loss': -inf, 'step': 3}
    """
    has_floats = (_FLOAT in text) if isinstance(text, str) else (_FLOAT.encode() in text)
    try:
        return json.loads(text, object_hook=_restored if has_floats else None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def naming_damage(url: str) -> Iterator[None]:
    """Name a file of a run whose JSON turns out to be damaged in the block.

    Args:
        url: the file.

    Raises:
        RunDamagedError: if the block fails as it does with a text that is no JSON, or other JSON.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise RunDamagedError(f"{url} is damaged: {exc!r}") from exc


def object_of(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a text; an empty one if the text is none, or damaged.

    Example:
        >>> object_of(b'{"step": 3}'), object_of(b'{"ste')
        ({'step': 3}, {})
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _restored(value: dict[str, Any]) -> Any:
    return float(value[_FLOAT]) if value.keys() == {_FLOAT} else value


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
        value = from_json(line)
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
        # The last line of each file, by which the file is recognised.
        self._last: dict[str, bytes] = {}

    def read(self, urls: Iterable[str]) -> list[tuple[str, Line]]:
        """Return the new whole lines, each with the URL of its file.

        A remote store is asked for all files at once. A line without an end is returned by the
        call after its end was written, and a line that does not parse is skipped. A file that
        another file has replaced, as a new attempt at a trial replaces its metrics, is read from
        its start by the next call.

        Args:
            urls: the files; those that do not exist yet have no lines.
        """
        offsets = {url: self._offsets.get(url, 0) for url in urls}
        values: list[tuple[str, Line]] = []
        for url, data in storage.read_new(offsets).items():
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:
                continue
            lines = whole.splitlines(keepends=True)
            # A first line that does not parse may be the middle of a line of another file.
            if offsets[url] and _parse(lines[0]) is None and self._is_replaced(url):
                self.forget(url)
                continue
            self._offsets[url] = offsets[url] + len(whole)
            self._last[url] = lines[-1]
            values += [(url, value) for line in lines if (value := _parse(line)) is not None]
        return values

    def _is_replaced(self, url: str) -> bool:
        """Return True if the line before the offset is not the last line that was read."""
        last = self._last[url]
        try:
            return storage.read(url, self._offsets[url] - len(last), len(last)) != last
        except OSError:
            return False

    def forget(self, url: str) -> None:
        """Read this file from its start the next time: another file will replace it."""
        self._offsets.pop(url, None)
        self._last.pop(url, None)


class LogTail:
    """Read the text that was added to one log file since the last call.

    A log that cannot be read now has no new text; a warning tells why.

    Args:
        url: the file, which need not exist yet.

    Attributes:
        url: the file.
        offset: number of bytes that were read or skipped.
        num_skipped_bytes: number of bytes that `lines` has skipped; the caller may reset it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.offset = 0
        self.num_skipped_bytes = 0
        self._outages = Outages(f"read {url}")
        # A character may be in two pieces.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._partial = b""
        self._is_torn = False  # The next line begins in the skipped part.

    def pieces(self) -> Iterator[str]:
        """Return all new text, in pieces that fit into memory."""
        while data := self._read(PIECE_BYTES):
            yield self._decoder.decode(data)

    def lines(self, last: bool = False) -> list[str]:
        """Return the new whole lines; of a large amount of new text only the newest lines.

        Args:
            last: also return a last line without an end.
        """
        data = self._read(2 * MAX_LINES_BYTES)
        if len(data) == 2 * MAX_LINES_BYTES:
            data = self._skip(data)
        lines = (self._partial + data).split(b"\n")
        if self._is_torn and len(lines) > 1:
            self.num_skipped_bytes += len(lines.pop(0)) + 1
            self._is_torn = False
        self._partial = b"" if last else lines.pop()[-MAX_LINES_BYTES:]
        return [line.decode(errors="replace").rstrip("\r") for line in lines if line or not last]

    def _read(self, size: int) -> bytes:
        data = b""
        with self._outages.tolerated(), suppress(FileNotFoundError):
            data = storage.read(self.url, self.offset, size)
        self.offset += len(data)
        return data

    def _skip(self, data: bytes) -> bytes:
        """Return the end of the file if there is more than `data`, which was read last."""
        num_left = 0
        with self._outages.tolerated(), suppress(FileNotFoundError):
            num_left = storage.size(self.url) - self.offset
        if num_left <= 0:
            return data
        self.num_skipped_bytes += len(data) + num_left - MAX_LINES_BYTES
        self.offset += num_left - MAX_LINES_BYTES
        self._partial = b""
        self._is_torn = True
        return self._read(MAX_LINES_BYTES)
