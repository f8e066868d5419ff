"""Messages on the page of troubleshooting are those of the code."""

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import REPOSITORY, Span, spans_of

PAGE = REPOSITORY / "docs/troubleshooting.md"
MESSAGES = [span for span in spans_of(PAGE) if span.column == "message"]
# `%s` and `%.0f` of a logger.
_PLACEHOLDER = re.compile(r"%[.\d]*[a-z]")


@functools.cache
def texts() -> list[str]:
    """Return all texts in the code of sparkdl, with `...` for what is filled in."""
    trees = (ast.parse(path.read_text()) for path in (REPOSITORY / "sparkdl").rglob("*.py"))
    return [_PLACEHOLDER.sub("...", text) for tree in trees for text in texts_of(tree)]


def texts_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "..." for v in node.values)
            yield "".join(map(str, parts))


def has(text: str, message: str) -> bool:
    """Return True if the parts of a message between dots occur in a text, in their order."""
    position = 0
    for part in filter(None, (part.strip(" .") for part in message.split("..."))):
        position = text.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return True


def test_the_page_has_messages() -> None:
    assert len(MESSAGES) > 60


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_a_message_is_in_the_code(message: Span) -> None:
    longest = max(message.text.split("..."), key=len)
    assert len(longest) > 8, "the message has too little text to be found"
    assert any(has(text, message.text) for text in texts()), message.text
