"""Runs in the fork server and in the training process. The result of the function of `preload=`.

The fork server calls the function, and the training processes that it forks inherit the result.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


# Process-wide state: what the function of `preload=` returned, raised and printed in this process,
# or in the one that it was forked from.
@dataclass
class Preloaded:
    """The traces of a call of the function of `preload=`.

    Attributes:
        is_called: the function has returned or raised.
        value: what it returned.
        error: what it raised.
        output: the last part of what it printed, for the log of the next process.
    """

    is_called: bool = False
    value: Any = None
    error: BaseException | None = None
    output: str = ""


_latest = Preloaded()


def latest() -> Preloaded:
    """Return what the last call of the function left; all that a process changes is its own."""
    return _latest


def forget_error() -> None:
    """Let the function be called again if it raised: a store may have failed for a moment."""
    if _latest.error is not None:
        _latest.is_called, _latest.error, _latest.output = False, None, ""


def take() -> None:
    """Print in a forked process what the function has printed, and raise what it has raised.

    Raises:
        BaseException: what the function raised.
    """
    if _latest.output:
        print(_latest.output, end="", flush=True)
    if _latest.error is not None:
        raise _latest.error


@contextlib.contextmanager
def holding(value: Any) -> Iterator[None]:
    """Let a value be the result of the function for a while."""
    before, _latest.value = _latest.value, value
    try:
        yield
    finally:
        _latest.value = before
