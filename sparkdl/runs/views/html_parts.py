"""Runs on the driver (pure). Parts of HTML of which the sections of a report are made."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Characters of a parameter, and lines and characters of a text such as a program.
MAX_PARAM = 200
MAX_LINES, MAX_TEXT = 400, 40_000


def escaped(value: object) -> str:
    """Return a value as text that is safe in HTML."""
    return html.escape(str(value))


def section(title: str, note: str, body: str) -> str:
    """Return a section of the page.

    Args:
        title: the title, as HTML.
        note: a remark below the title, as HTML; empty for none.
        body: the content, as HTML.

    Example:
        >>> section("Trials", "", "<p>none</p>")
        '<section><h2>Trials</h2><p>none</p></section>'
    """
    soft = f'<p class="soft">{note}</p>' if note else ""
    return f"<section><h2>{title}</h2>{soft}{body}</section>"


def pairs(values: Mapping[str, Any]) -> str:
    """Return names and values as a list; both are plain text.

    Example:
        >>> pairs({"a < b": 1})
        '<dl><dt>a &lt; b</dt><dd>1</dd></dl>'
    """
    rows = (f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in values.items())
    return f"<dl>{''.join(rows)}</dl>" if values else ""


def row(cells: Iterable[object]) -> str:
    """Return a row of a table; the cells are plain text."""
    return f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in cells)}</tr>"


def table(rows: Iterable[str]) -> str:
    """Return a table of rows as HTML, which scrolls where it is wider than the page."""
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def details(summary: str, body: str, is_open: bool = False) -> str:
    """Return a part that the reader can open and close; both are HTML."""
    return f"<details{' open' * is_open}><summary>{summary}</summary>{body}</details>"


def preformatted(lines: Sequence[str]) -> str:
    """Return plain lines of a text such as a program, the first ones of a long text."""
    kept, room = [], MAX_TEXT
    for line in lines[:MAX_LINES]:
        kept.append(line[:room])
        room -= len(kept[-1]) + 1
        if room <= 0:
            break
    more = len(lines) - len(kept)
    rest = f'<p class="soft">and {more} more lines</p>' if more else ""
    return f"<pre>{escaped(chr(10).join(kept))}</pre>{rest}"


def short(value: object) -> str:
    """Return a value as a short text.

    Example:
        >>> short(1 / 3), short("a" * 300) == "a" * 200
        ('0.333333', True)
    """
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:MAX_PARAM]


def duration(seconds: float) -> str:
    """Return a duration in words.

    Example:
        >>> duration(12.34), duration(754), duration(90000)
        ('12.3 s', '12 min 34 s', '25 h 0 min')
    """
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"
