"""The code in the pages: blocks, and what stands in backticks in a sentence or a table."""

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["REPOSITORY", "Block", "Span", "blocks_of", "pages", "rows_of", "spans_of"]

REPOSITORY = Path(__file__).parents[2]

_BLOCK = re.compile(
    r"(?:^<!-- code: (?P<marker>[^>]*?) -->\n+)?"
    r"^(?P<fence>`{3,})(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
_SPAN = re.compile(r"(?<!`)(?P<ticks>`{1,2})(?!`)(?P<text>.+?)(?<!`)(?P=ticks)(?!`)", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        page: the path of the page, relative to the repository.
        line: the number of its first line.
        language: the word behind the backticks.
        text: the code.
        marker: the comment `<!-- code: checked, why -->` or `<!-- code: skipped, why -->` before
            the block, from `checked` or `skipped` on; empty without one.
    """

    page: str
    line: int
    language: str
    text: str
    marker: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Span:
    """Code in a sentence, or in a table whose column has a title.

    Attributes:
        page: the path of the page, relative to the repository.
        line: the number of its line.
        text: the code, in one line.
        column: the title of the column in a table; empty elsewhere.
    """

    page: str
    line: int
    text: str
    column: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return the pages of the documentation."""
    names = ("README.md", "CONTRIBUTING.md", "conf/README.md", "benchmarks/results/README.md")
    return [*map(REPOSITORY.joinpath, names), *sorted((REPOSITORY / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = page.read_text()
    name = page.relative_to(REPOSITORY).as_posix()
    return [
        Block(
            name,
            text.count("\n", 0, match.start("fence")) + 1,
            match["language"].strip(),
            match["text"],
            match["marker"] or "",
        )
        for match in _BLOCK.finditer(text)
    ]


def spans_of(page: Path) -> list[Span]:
    """Return the code in backticks of a page outside its blocks, in order."""
    name = page.relative_to(REPOSITORY).as_posix()
    blank = _BLOCK.sub(lambda match: "\n" * match[0].count("\n"), page.read_text())
    spans: list[Span] = []
    titles: list[str] = []
    number = 1
    for paragraph in re.split(r"(\n\s*\n|\n(?=\||[ ]*[-*] ))", blank):
        if not paragraph.startswith("|"):
            spans += [Span(name, number, text, "") for text in _code_in(paragraph)]
            titles = [] if paragraph.strip() or paragraph.count("\n") > 1 else titles
        else:
            cells = _cells(paragraph)
            titles = titles or cells
            spans += [
                Span(name, number, text, title)
                for title, cell in zip(titles, cells, strict=False)
                for text in _code_in(cell)
            ]
        number += paragraph.count("\n")
    return spans


def rows_of(page: Path) -> list[list[str]]:
    """Return the cells of all rows of the tables of a page, without titles and rules."""
    lines = page.read_text().splitlines()
    rows = [
        _cells(line)
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("|") and not after.startswith("|---") and not line.startswith("|---")
    ]
    return rows


def _code_in(text: str) -> list[str]:
    return [" ".join(match["text"].split()) for match in _SPAN.finditer(text)]


def _cells(row: str) -> list[str]:
    """Return the cells of a row; a bar behind a backslash belongs to its cell."""
    cells = re.split(r"(?<!\\)\|", row.strip().strip("|"))
    return [cell.strip().replace("\\|", "|") for cell in cells]
