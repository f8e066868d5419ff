"""Runs in the training process. Tells the task of this process that it waits for other ranks."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sparkdl.context import Context

__all__ = ["joining"]


@contextlib.contextmanager
def joining(me: Context) -> Iterator[None]:
    """Tell the task that watches this process how far it is: a peer that never comes blocks it."""
    folder = Path(me.folder or "", "ranks", str(me.attempt))
    marks = [folder / f"{me.rank}.{state}" for state in ("joining", "joined")]
    is_watched = bool(me.folder) and folder.is_dir()
    if is_watched:
        marks[1].unlink(missing_ok=True)
        marks[0].touch()
    try:
        yield
    finally:
        if is_watched:
            marks[1].touch()
