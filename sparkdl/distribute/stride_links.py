"""Runs in the training process. Connect ranks to others than their neighbours, see `strides`."""

import contextlib
import hashlib
import hmac
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sparkdl.distribute.heartbeat import Heartbeat
from sparkdl.distribute.invitation import Invitation
from sparkdl.distribute.links import Link, Links
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.strides import Strides, plan_strides
from sparkdl.errors import PeerLostError

# Seconds until the ring does without: all ranks are there already.
OPEN_S = 60.0

# Connects with a predecessor and a successor: invitation, listener, predecessor, successor.
Connect = Callable[[Invitation, socket.socket, int, int], tuple[Link, Link]]

_logger = logging.getLogger("sparkdl.distribute")


def open_strides(
    invitation: Invitation, order: Sequence[int], connect: Connect, ring: Ring, links: Links
) -> Strides | None:
    """Return the connections to ranks further away; None if some ranks cannot have them.

    All ranks call it at the same time.

    Args:
        invitation: the invitation of this rank to the ring.
        order: ranks in ring order.
        connect: connects this rank with a predecessor and a successor.
        ring: the ring.
        links: the links to the neighbours in the ring.

    Raises:
        PeerLostError: if a rank is lost meanwhile.
    """
    positions, strides = plan_strides([invitation.endpoints[rank].node for rank in order])
    ranks = [order[position] for position in positions]
    place = ranks.index(invitation.rank)
    pairs: list[tuple[Link, Link]] = []
    reason: Exception | None = None
    with contextlib.ExitStack() as opened:
        listeners = _listen(invitation, len(strides), opened)
        table = np.zeros((len(ranks), len(strides)), np.int64)
        if listeners:
            table[invitation.rank] = [one.getsockname()[1] for one in listeners]
        table = ring.allreduce(table, "sum")
        is_possible = bool(table.all())
        for number, stride in enumerate(strides if is_possible else ()):
            predecessor, successor = ranks[place - stride], ranks[(place + stride) % len(ranks)]
            own = _own_invitation(invitation, stride, table[:, number].tolist())
            try:
                pairs.append(connect(own, listeners[number], predecessor, successor))
            except (OSError, PeerLostError) as exc:
                reason = exc
                break
        is_open = is_possible and reason is None
    heartbeat = Heartbeat([link for pair in pairs for link in pair], invitation.timeout_s)
    made = Strides(positions, place, strides, [links.like(*pair, heartbeat) for pair in pairs])
    try:
        are_open = ring.vote(int(is_open)) == 1
    except BaseException:
        made.close()
        raise
    if are_open:
        return made
    made.close()
    _logger.warning("all collectives go around the ring: %s", reason or "another rank failed")
    return None


def _listen(
    invitation: Invitation, count: int, opened: contextlib.ExitStack
) -> list[socket.socket]:
    """Return sockets that listen on free ports; none if this rank cannot have them all."""
    address = invitation.endpoints[invitation.rank].address
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return [
            opened.enter_context(socket.create_server((address, 0), family=family))
            for _ in range(count)
        ]
    except OSError as exc:
        _logger.warning("cannot listen on %s: %s", address, exc)
        return []


def _own_invitation(invitation: Invitation, stride: int, ports: Sequence[int]) -> Invitation:
    """Return the invitation by which ranks connect that are some places from each other."""
    endpoints = [
        replace(endpoint, port=port)
        for endpoint, port in zip(invitation.endpoints, ports, strict=True)
    ]
    # The ports tell the connections of a ring apart, and no other gang knows its secret.
    secret = hmac.digest(invitation.secret, f"stride {stride} {ports}".encode(), hashlib.sha256)
    join_s = min(invitation.join_s, OPEN_S)
    return replace(invitation, endpoints=endpoints, secret=secret, join_s=join_s)
