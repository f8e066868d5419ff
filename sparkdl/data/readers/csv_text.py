"""Runs anywhere (pure). CSV text as Spark writes it, in the form that pyarrow reads.

In quoted text Spark puts a backslash before a quote and before a backslash; RFC 4180, pandas and
most others double the quote. Outside quotes a backslash is text for all of them, while pyarrow's
`escape_char` removes it there too. So quoted text is rewritten before pyarrow reads it.
"""

import codecs
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

CHUNK_BYTES = 1 << 20
# A value that does not end within this many bytes has no closing quote.
MAX_VALUE_BYTES = 16 << 20
MAX_SHOWN = 40


class AmbiguousText(ValueError):
    """Raised for quoted text that programs read differently."""


class HasEscapes(Exception):
    """Raised by `without_escapes`: the text must be rewritten."""


def without_escapes(source: Any, quote: str, escape: str) -> Any:
    """Return a stream that raises `HasEscapes` where a quote or an escape may be escaped.

    Few files have any, and to search for them is much faster than to rewrite a text.

    Args:
        source, quote, escape: see `rewritten`.
    """
    if not quote or escape == quote:
        return source
    pairs = [(escape + char).encode() for char in (quote, escape)]

    def pieces() -> Iterator[bytes]:
        before = b""
        while chunk := source.read(CHUNK_BYTES):
            text = before + chunk
            if any(pair in text for pair in pairs):
                raise HasEscapes
            yield chunk
            before = chunk[-len(escape.encode()) :]

    return _buffered(pieces())


def rewritten(
    source: Any,
    sep: str,
    quote: str,
    escape: str,
    comment: str | None = None,
    is_ambiguous: bool = False,
) -> Any:
    r"""Return a stream of CSV text without comments, whose quoted text has doubled quotes.

    Args:
        source: a stream of UTF-8.
        sep: the character between values.
        quote: the character around quoted text; empty if there is none.
        escape: the character before a quote or itself in quoted text; `quote` if quotes are
            doubled.
        comment: the first character of lines to leave out; None if there are none.
        is_ambiguous: refuse escapes.

    Raises:
        AmbiguousText: while the stream is read, for an escape.

    Example:
        >>> text = br'C:\dir,"5\" of C:\\, D:"'
        >>> print(rewritten(io.BytesIO(text), ",", '"', "\\").read().decode())
        C:\dir,"5"" of C:\, D:"
    """
    pattern = _pattern(sep, quote, escape, comment)
    escaped = re.compile(rb"%b([%b%b])" % _literals(escape, escape, quote))
    mark, char = quote.encode(), escape.encode()
    doubled = mark * 2

    def unescaped(inside: bytes) -> bytes:
        if char * 2 not in inside:
            return inside.replace(char + mark, doubled)
        return escaped.sub(lambda found: doubled if found[1] == mark else found[1], inside)

    def replacement(match: "re.Match[bytes]") -> bytes | None:
        """Return what replaces a quoted value or a comment; None for the same."""
        inside = match[1]
        if inside is None:
            return b""
        if escape == quote or not (found := escaped.search(inside)):
            return None
        if is_ambiguous:
            raise AmbiguousText(_problem(inside, found.start()))
        return mark + unescaped(inside) + match[2]

    return _buffered(_pieces(source, pattern, replacement))


def _problem(inside: bytes, position: int) -> str:
    shown = inside[max(position - MAX_SHOWN // 2, 0) :][:MAX_SHOWN].decode(errors="replace")
    return (
        f"the quoted text {shown!r} has a backslash before a quote or a backslash. Pass "
        r"escape='\\' if the backslash is an escape, as in files of Spark, or escape='"
        "\"' if it is text, as in files of pandas and spreadsheets."
    )


def _buffered(pieces: Iterator[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Stream(pieces), CHUNK_BYTES)


class _Stream(io.RawIOBase):
    """A stream of pieces of any size."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._unread = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unread:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._unread = memoryview(piece)
        size = min(len(buffer), len(self._unread))
        buffer[:size], self._unread = self._unread[:size], self._unread[size:]
        return size


def _literals(*texts: str) -> tuple[bytes, ...]:
    return tuple(re.escape(text).encode() for text in texts)


def _pattern(sep: str, quote: str, escape: str, comment: str | None) -> "re.Pattern[bytes]":
    """Return the pattern of a quoted value (what is inside, its end), and of a comment."""
    between, mark, char = _literals(sep, quote, escape)
    parts = [rb"(?!)(.)(.)"]
    if quote:
        inside = rb"(?:[^%b%b]+|%b(?:.|\Z)|%b%b)*" % (mark, char, char, mark, mark)
        if escape == quote:
            inside = rb"(?:[^%b]+|%b%b)*" % (mark, mark, mark)
        # A quote within a value that is not quoted is text.
        parts = [rb"%b(?<=[%b\r\n]%b)(%b)(%b|\Z)" % (mark, between, mark, inside, mark)]
    if comment is not None:
        parts.append(rb"%b(?<=[\r\n]%b)[^\r\n]*(?:\r\n?|\n|\Z)" % (_literals(comment) * 2))
    return re.compile(b"|".join(parts), re.DOTALL)


def _pieces(
    source: Any,
    pattern: "re.Pattern[bytes]",
    replacement: Callable[["re.Match[bytes]"], bytes | None],
) -> Iterator[bytes]:
    # The text begins with the byte before the first that is not rewritten yet.
    text, is_first, is_last = b"\n", True, False
    while not is_last:
        chunk = source.read(CHUNK_BYTES)
        is_last = not chunk
        text += chunk.removeprefix(codecs.BOM_UTF8) if is_first else chunk
        is_first = False
        pieces = []
        position = 1
        stop = len(text)
        for match in pattern.finditer(text, 1):
            # The next chunk may continue a match.
            if match.end() == len(text) and not is_last:
                stop = match.start()
                break
            new = replacement(match)
            if new is not None:
                pieces += [text[position : match.start()], new]
                position = match.end()
        yield b"".join([*pieces, text[position:stop]])
        text = text[stop - 1 :]
        if len(text) > MAX_VALUE_BYTES:
            raise ValueError(f"a quoted value has more than {MAX_VALUE_BYTES >> 20} MB.")
