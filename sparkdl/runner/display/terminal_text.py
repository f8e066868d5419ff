"""Runs anywhere (pure). Reduce what a program writes to a terminal to the text that stays there."""

import re

# Sequences that set colors, or move the cursor to another line.
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-JL-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]")
_PARTS = re.compile(r"\r|\x08+|\x1b\[[0-2]?K|[^\r\x08\x1b]+|\x1b")


def without_styles(line: str) -> str:
    """Return a line without the sequences that set colors or styles.

    Example:
        >>> without_styles("\\x1b[1m5/10\\x1b[0m")
        '5/10'
    """
    return _STYLE.sub("", line) if "\x1b" in line else line


def visible_text(line: str) -> str:
    """Return the text that a terminal shows after a line that moves the cursor back.

    Progress bars, such as the one of Keras, write the same line again and again, with a carriage
    return or with backspaces.

    Example:
        >>> visible_text("1/3 loss: 0.50\\r3/3 loss: 0.2")
        '3/3 loss: 0.20'
        >>> visible_text("10 %\\x08\\x08\\x08\\x0899 %")
        '99 %'
    """
    if not {"\r", "\x08"} & set(line):
        return line
    visible, cursor = "", 0
    for part in _PARTS.findall(_STYLE.sub("", line)):
        if part == "\r":
            cursor = 0
        elif part[0] == "\x08":
            cursor = max(0, cursor - len(part))
        elif part[0] == "\x1b":
            visible = visible[:cursor] if part != "\x1b[1K" else " " * cursor + visible[cursor:]
        else:
            visible = visible[:cursor] + part + visible[cursor + len(part) :]
            cursor += len(part)
    return visible.rstrip()
