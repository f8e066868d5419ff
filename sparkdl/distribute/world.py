"""Runs in the training process. The ring that this process is in."""

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
    try:
        if me.is_elastic:
            return ElasticRing(me, me.ring)
        # It stays open: in a process that is forked later its number is no other file's.
        end = socket.socket(fileno=me.ring)
        try:
            invitation, listener = Invitation.receive(end)
        finally:
            end.detach()
    except (OSError, EOFError) as exc:  # Received before, or by another process.
        raise RuntimeError(
            "a process that the training function has started cannot call collectives: only "
            "the training process itself is in the ring."
        ) from exc
    with joining(me):
        return join(invitation, listener)
