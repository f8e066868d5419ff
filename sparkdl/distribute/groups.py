"""Runs in the training process. Rings over some of the ranks."""

import contextlib
import hashlib
import hmac
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sparkdl.distribute.handshake import join
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.world import invitation, ring


class Group:
    """Some of the ranks, with a ring of their own, see `group`.

    Args:
        ranks: the ranks of the group, in ascending order.
        members: the ring of the group; None on ranks that are not in it.

    Attributes:
        ranks: the ranks of the group, in ascending order.
    """

    def __init__(self, ranks: list[int], members: Ring | None) -> None:
        self.ranks = ranks
        self._members = members
        self._closing: list[Callable[[], None]] = []

    @property
    def ring(self) -> Ring:
        """The ring of the group.

        Raises:
            ValueError: if this rank is not in the group.
            RuntimeError: in a process that the training function has started.
        """
        rank = ring().rank
        if self._members is None:
            raise ValueError(
                f"rank {rank} called a collective of the group of ranks {self.ranks}, and "
                "is not in it. Call it on the ranks of the group only."
            )
        return self._members

    def place(self, rank: int) -> int:
        """Return the place of a rank of the gang in the group.

        Raises:
            ValueError: if the rank is not in the group.
        """
        if rank not in self.ranks:
            raise ValueError(f"root is {rank!r}; expected a rank of the group, {self.ranks}.")
        return self.ranks.index(rank)

    def call_at_close(self, function: Callable[[], None]) -> None:
        """Let `close` call a function first."""
        self._closing.append(function)

    def close(self) -> None:
        """Leave the ring of the group; its other ranks notice at once."""
        for function in self._closing:
            function()
        if self._members and self._members is not ring():
            self._members.close()


def group(ranks: Iterable[int]) -> Group:
    """Return a group of ranks, for collectives over a part of the gang.

    All ranks of the gang must call it, those outside the group too, in the same order.

    Args:
        ranks: the ranks of the group.

    Raises:
        ValueError: if `ranks` is empty, has a number that is no rank, or differs between the
            ranks.
        RuntimeError: in an elastic gang, whose ranks change.

    Example:
        >>> import numpy as np
        >>> from sparkdl import distribute
        >>> evens = distribute.group([0])
        >>> distribute.allreduce(np.array([1.0]), group=evens)
        array([1.])
    """
    world = ring()
    members = sorted(set(ranks))
    if not members or not set(members) <= set(range(world.size)):
        raise ValueError(
            f"the group has the ranks {members}; expected some of the ranks 0 to {world.size - 1}."
        )
    return Group(members, _connect(world, range(world.size), members))


def second_ring(first: Group) -> Ring:
    """Return another ring over the ranks of a group, all of which must call it.

    Args:
        first: the group.

    Raises:
        RuntimeError: in an elastic gang, whose ranks change.
    """
    return _connect(first.ring, first.ranks, first.ranks) or first.ring


def _connect(world: Ring, callers: Sequence[int], members: Sequence[int]) -> Ring | None:
    """Return a new ring of some of the ranks that call this; None on the others.

    Args:
        world: the ring of the ranks that call this.
        callers: their ranks in the gang.
        members: ranks in the gang of the new ring.
    """
    if world.is_alone:
        return world
    mine = invitation()
    if mine is None:
        raise RuntimeError(
            "an elastic gang has no groups, because its ranks change. Run without elastic=True."
        )
    rank = callers[world.rank]
    address = mine.endpoints[rank].address
    with contextlib.ExitStack() as opened:
        listener, port, error = None, 0, ""
        try:
            if rank in members:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                listener = socket.create_server((address, 0), family=family)
                port = opened.enter_context(listener).getsockname()[1]
        except OSError as exc:
            error = f"rank {rank} cannot listen on {address} for a group: {exc}."
        answers = world.allgather_object([members, port, error])
        if errors := [error for _, _, error in answers if error]:
            raise OSError(" ".join(errors))
        groups = [ranks for ranks, _, _ in answers]
        if any(ranks != members for ranks in groups):
            raise ValueError(
                f"the ranks gave different groups: {groups}, by rank; expected the same."
            )
        if listener is None:
            return None
        opened.pop_all()  # `join` closes it.
    ports = [port for _, port, _ in answers]
    endpoints = [replace(mine.endpoints[r], port=ports[callers.index(r)]) for r in members]
    # The ports tell the rings of a gang apart, and no other gang knows its secret.
    secret = hmac.digest(mine.secret, f"ring {members} {ports}".encode(), hashlib.sha256)
    place = members.index(rank)
    own_invitation = replace(
        mine, rank=place, endpoints=endpoints, secret=secret, members=tuple(members)
    )
    return join(own_invitation, listener)
