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
from sparkdl.distribute.stride_plan import plan_strides
from sparkdl.distribute.strides import Strides
from sparkdl.errors import PeerLostError

# Seconds until the ring does without: all ranks are there already.
OPEN_S = 60.0

# Connects with a predecessor and a successor: invitation, listener, predecessor, successor, and
# True to share memory with them if they are on the same host.
Connect = Callable[[Invitation, socket.socket, int, int, bool], tuple[Link, Link]]

_logger = logging.getLogger("sparkdl.distribute")


def open_strides(
    invitation: Invitation, order: Sequence[int], connect: Connect, ring: Ring, links: Links
) -> Strides | None:
    """Return the connections for collectives in rounds; None if some ranks cannot have them.

    Args:
        invitation, connect, ring, links: see `open_links`.
        order: ranks in ring order.

    Raises:
        PeerLostError: if a rank is lost meanwhile.
    """
    plan = plan_strides([invitation.endpoints[rank].node for rank in order])
    ranks = [order[position] for position in plan.order]
    place = ranks.index(invitation.rank)
    neighbours = [
        # Long blocks travel within a host only if all hosts have as many ranks.
        (ranks[place - stride], ranks[(place + stride) % len(ranks)], number < plan.num_local)
        for number, stride in enumerate(plan.strides)
    ]
    opened = open_links(invitation, neighbours, connect, ring, links)
    return Strides(plan, place, opened) if opened else None


def open_pairs(
    invitation: Invitation, connect: Connect, ring: Ring, links: Links
) -> list[Links] | None:
    """Return the connections to the ranks whose numbers differ in one bit, by that bit.

    Args:
        invitation, connect, ring, links: see `open_links`. The number of ranks is a power of two.

    Returns:
        The connections; None if some ranks cannot have them.

    Raises:
        PeerLostError: if a rank is lost meanwhile.
    """
    others = [invitation.rank ^ 1 << bit for bit in range(ring.size.bit_length() - 1)]
    return open_links(invitation, [(one, one, True) for one in others], connect, ring, links)


def open_links(
    invitation: Invitation,
    neighbours: Sequence[tuple[int, int, bool]],
    connect: Connect,
    ring: Ring,
    links: Links,
) -> list[Links] | None:
    """Return connections to other ranks; None if some ranks cannot have them.

    All ranks call it at the same time, and connect as often as each other.

    Args:
        invitation: the invitation of this rank to the ring.
        neighbours: the ranks to receive from and to send to, and True to share memory with them.
        connect: connects this rank with a predecessor and a successor.
        ring: the ring.
        links: the links to the neighbours in the ring.

    Raises:
        PeerLostError: if a rank is lost meanwhile.
    """
    pairs: list[tuple[Link, Link]] = []
    reason: Exception | None = None
    with contextlib.ExitStack() as opened:
        listeners = _listen(invitation, len(neighbours), opened)
        table = np.zeros((ring.size, len(neighbours)), np.int64)
        if listeners:
            table[invitation.rank] = [one.getsockname()[1] for one in listeners]
        table = ring.allreduce(table, "sum")
        is_possible = bool(table.all())
        for number, both in enumerate(neighbours if is_possible else ()):
            own = _own_invitation(invitation, number, table[:, number].tolist())
            try:
                pairs.append(connect(own, listeners[number], *both))
            except (OSError, PeerLostError) as exc:
                reason = exc
                break
        is_open = is_possible and reason is None
    heartbeat = Heartbeat([link for pair in pairs for link in pair], invitation.timeout_s)
    made = [links.like(*pair, heartbeat) for pair in pairs]
    are_open = False
    try:
        are_open = ring.vote(int(is_open)) == 1
    finally:
        for one in () if are_open else made:
            one.close()
    if not are_open:
        _logger.warning("all collectives go around the ring: %s", reason or "another rank failed")
    return made if are_open else None


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


def _own_invitation(invitation: Invitation, number: int, ports: Sequence[int]) -> Invitation:
    """Return the invitation by which ranks connect that are not neighbours in the ring."""
    endpoints = [
        replace(endpoint, port=port)
        for endpoint, port in zip(invitation.endpoints, ports, strict=True)
    ]
    # The ports tell the connections of a ring apart, and no other gang knows its secret.
    secret = hmac.digest(invitation.secret, f"links {number} {ports}".encode(), hashlib.sha256)
    join_s = min(invitation.join_s, OPEN_S)
    return replace(invitation, endpoints=endpoints, secret=secret, join_s=join_s)
