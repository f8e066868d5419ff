"""Runs in the training process. Report to the task that this process waits for other ranks."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sparkdl.context import Context
from sparkdl.files.layout import TrialPaths


@contextlib.contextmanager
def joining(me: Context) -> Iterator[None]:
    """Mark this process as joining inside the block, and as joined after it.

    The task watches the marks, because a rank that never joins blocks all others. A mark is an
    empty file in the trial's folder.

    Args:
        me: the context of this process.
    """
    paths = TrialPaths(me.folder or ".")
    is_watched = bool(me.folder) and Path(paths.ranks(me.attempt)).is_dir()
    joining_mark = Path(paths.rank_status(me.attempt, me.rank, "joining"))
    joined_mark = Path(paths.rank_status(me.attempt, me.rank, "joined"))
    if is_watched:
        joined_mark.unlink(missing_ok=True)
        joining_mark.touch()
    try:
        yield
    finally:
        if is_watched:
            joined_mark.touch()
