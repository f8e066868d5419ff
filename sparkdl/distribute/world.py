"""Runs in the training process. The ring that this process belongs to."""

import functools
import os
import socket

from sparkdl import context
from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.handshake import join
from sparkdl.distribute.invitation import Invitation
from sparkdl.distribute.join_marker import joining
from sparkdl.distribute.ring import Ring

__all__ = ["is_joined", "ring"]


def ring() -> Ring:
    """Return the ring of all ranks that train together; outside a gang, a ring of one rank.

    The first call blocks until all ranks have called it.

    Raises:
        PeerLostError: if another rank does not join in time.
        RuntimeError: if this process was started by the training function, and so has no ring.
    """
    return _ring(os.getpid())


def is_joined() -> bool:
    """Return True if this process has called `ring` before."""
    return _ring.cache_info().currsize > 0


# Process-wide state: one ring per process. The process id is an argument so that a forked process
# does not use the ring of its parent.
@functools.lru_cache(maxsize=1)
def _ring(pid: int) -> Ring:
    me = context.current()
    if me.ring is None:
        return Ring()
    try:
        if me.is_elastic:
            return ElasticRing(me, me.ring)
        # The descriptor stays open: a process forked later then cannot have another file under
        # its number.
        end = socket.socket(fileno=me.ring)
        try:
            invitation, listener = Invitation.receive(end)
        finally:
            end.detach()
    except (OSError, EOFError) as exc:  # Another process has received the invitation.
        raise RuntimeError(
            "a process that the training function has started cannot call collectives: only "
            "the training process itself is in the ring."
        ) from exc
    with joining(me):
        return join(invitation, listener)
