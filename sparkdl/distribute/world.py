"""Where it runs: P. The ring that this process is in."""

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from sparkdl import context
from sparkdl.context import Context
from sparkdl.distribute.handshake import join
from sparkdl.distribute.invitation import Invitation
from sparkdl.distribute.ring import Ring

__all__ = ["is_joined", "joining", "ring"]


def ring() -> Ring:
    """The ring of all ranks that train together; one of this process alone outside a gang.

    The first call blocks until all of them have called it.

    Raises:
        PeerLostError: another rank has not come in time.
        RuntimeError: a process that the training function has started is in no ring.
    """
    return _ring(os.getpid())


def is_joined() -> bool:
    """Whether this process has called `ring` before."""
    return _ring.cache_info().currsize > 0


@functools.lru_cache(maxsize=1)
def _ring(pid: int) -> Ring:
    me = context.current()
    if me.ring is None:
        return Ring()
    invitation, listener = Invitation.receive(me.ring)
    with joining(me):
        return join(invitation, listener)


@contextlib.contextmanager
def joining(me: Context) -> Iterator[None]:
    """Tell the task that watches this process how far it is: a peer that never comes blocks it."""
    folder = Path(me.folder or "", "ranks", str(me.attempt))
    marks = [folder / f"{me.rank}.{state}" for state in ("joining", "joined")]
    is_watched = bool(me.folder) and folder.is_dir()
    if is_watched:
        marks[1].unlink(missing_ok=True)
        marks[0].touch()
    yield
    if is_watched:
        marks[1].touch()
