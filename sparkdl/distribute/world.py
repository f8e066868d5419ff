"""Runs in the training process. The ring that this process belongs to."""

import functools
import os
import socket
import threading

from sparkdl import context
from sparkdl.context import Context
from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.handshake import join
from sparkdl.distribute.invitation import Invitation
from sparkdl.distribute.join_marker import joining
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.step_times import post_step_times


def ring() -> Ring:
    """Return the ring of all ranks that train together; outside a gang, a ring of one rank.

    The first call blocks until all ranks have called it.

    Raises:
        PeerLostError: if another rank does not join in time; later calls raise it again.
        RuntimeError: if this process was started by the training function, and so has no ring.
    """
    joined = _join_once()
    if isinstance(joined, Exception):
        raise joined
    return joined[0]


def invitation() -> Invitation | None:
    """Return the invitation to the ring; None outside a gang and in an elastic gang."""
    joined = _join_once()
    return None if isinstance(joined, Exception) else joined[1]


def is_joined() -> bool:
    """Return True if this process has called `ring` before, and has joined."""
    return _ring_of.cache_info().currsize > 0 and not isinstance(_join_once(), Exception)


# Process-wide state: a lock for each process, as a forked one may find that of its parent held.
_locks: dict[int, threading.Lock] = {}


def _join_once() -> tuple[Ring, Invitation | None] | Exception:
    """Return what `_ring_of` does; threads that call it at the same time wait for the first."""
    with _locks.setdefault(os.getpid(), threading.Lock()):
        return _ring_of(os.getpid())


# Process-wide state: one ring per process, or the error with which it could not join: an invitation
# serves once. The process id is an argument so that a forked process does not use the ring of its
# parent.
@functools.lru_cache(maxsize=1)
def _ring_of(pid: int) -> tuple[Ring, Invitation | None] | Exception:
    me = context.current()
    if me.ring is None:
        return Ring(), None
    try:
        joined = (ElasticRing(me, me.ring), None) if me.is_elastic else _join(me, me.ring)
    except EOFError as exc:  # Another process has received the invitation.
        error = RuntimeError(
            "a process that the training function has started cannot call collectives: only "
            "the training process itself is in the ring."
        )
        error.__cause__ = exc
        return error
    except Exception as exc:  # noqa: BLE001 The caller raises it.
        return exc
    post_step_times(me)
    return joined


def _join(me: Context, descriptor: int) -> tuple[Ring, Invitation]:
    try:
        # The descriptor stays open: a process forked later then cannot have another file under
        # its number.
        end = socket.socket(fileno=descriptor)
        try:
            invitation, listener = Invitation.receive(end)
        finally:
            end.detach()
    except OSError as exc:
        raise EOFError("this process has no channel to the task of its rank") from exc
    with joining(me):
        ring = join(invitation, listener)
    ring.is_world = True
    return ring, invitation
