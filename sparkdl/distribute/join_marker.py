"""Runs in the training process. Report to the task that this process waits for other ranks."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sparkdl.context import Context

__all__ = ["joining"]


@contextlib.contextmanager
def joining(me: Context) -> Iterator[None]:
    """Mark this process as joining inside the block, and as joined after it.

    The task watches the marks, because a rank that never joins blocks all others. A mark is an
    empty file in the trial's folder.

    Args:
        me: the context of this process.
    """
    folder = Path(me.folder or "", "ranks", str(me.attempt))
    is_watched = bool(me.folder) and folder.is_dir()
    joining_mark = folder / f"{me.rank}.joining"
    joined_mark = folder / f"{me.rank}.joined"
    if is_watched:
        joined_mark.unlink(missing_ok=True)
        joining_mark.touch()
    try:
        yield
    finally:
        if is_watched:
            joined_mark.touch()
