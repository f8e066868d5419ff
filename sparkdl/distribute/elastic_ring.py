"""Runs in the training process. A ring that outlives the loss of a rank.

The ranks that are left make a new ring and repeat the collective that was cut short; nobody else
notices. As each collective needs all ranks, none is more than one ahead of another, and whoever has
the result already gives it to those that lack it. A rank that is started again waits outside until
all others stand between two steps, see `admit`; they give it what they have.
"""

import dataclasses
import json
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparkdl import context
from sparkdl.context import Context
from sparkdl.distribute.handshake import join
from sparkdl.distribute.invitation import PACKET_BYTES, Invitation
from sparkdl.distribute.join_marker import joining
from sparkdl.distribute.ring import Ring
from sparkdl.errors import PeerLostError

__all__ = ["ElasticRing"]

_LATE = (
    "this rank was started again, and the others train already: it cannot call a collective before "
    "it has joined them. That is done by fit of a model with distribute.optimizer, or by "
    "hvd.elastic.run; leave collectives before these out, or run without elastic=True."
)


class _Door:
    """The channel to this process's task, by which it is invited to one ring after the other."""

    def __init__(self, descriptor: int) -> None:
        if os.getsid(0) != os.getpid():
            raise EOFError("not the training process, but one that it has started")
        self._end = socket.socket(fileno=descriptor)
        self._told: set[tuple[str, int]] = set()

    def ask(self, generation: int, **what: bool) -> tuple[Invitation, socket.socket]:
        """Wait for the ring behind this generation; what the rank is, see `cluster.roster.Here`."""
        self._end.send(json.dumps({"generation": generation, **what}).encode())
        while True:
            packet, listeners, _, _ = socket.recv_fds(self._end, PACKET_BYTES, 1)
            if listeners:
                return Invitation.parse(packet, listeners[0])
            self._note(packet)

    def is_told(self, what: str, generation: int) -> bool:
        """Whether the task has said of this generation that one is `waiting`, or it is `off`."""
        try:
            while True:
                self._note(self._end.recv(PACKET_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return (what, generation) in self._told

    def _note(self, packet: bytes) -> None:
        if not packet:
            raise PeerLostError("the task of this rank has gone")
        notice = json.loads(packet)
        self._told.add((notice["what"], notice["generation"]))


class ElasticRing(Ring):
    """The ring of an elastic gang, whose ranks are those that are there now.

    Args:
        me, descriptor: this process, and its end of the channel to its task.

    Attributes:
        members: the ranks in the gang of those in the ring, by rank.
        root: the first rank that has the state of the training.
        recovers: make a new ring where one breaks; else collectives raise `PeerLostError` then, and
            whoever calls them goes on with `meet`.
        has_state: this rank has the state of the training.
        has_trained: a `fit` was over; ranks that come now would begin with it again.
    """

    def __init__(self, me: Context, descriptor: int) -> None:
        super().__init__(range(me.world_size), me.rank, nodes=[""] * me.world_size)
        self.is_alone = False
        self.members, self.root = list(range(me.world_size)), 0
        self.recovers, self.has_trained = True, False
        self._me, self._door, self._generation = me, _Door(descriptor), -1
        self._ring: Ring | None = None
        self._count, self._last = 0, list[Any]()
        self._have_state = [True]
        self.has_state = not me.is_late
        self._elastic_lock = threading.RLock()
        if not me.is_late:
            self.meet()

    @property
    def is_late(self) -> bool:
        """Whether this rank was started again, and has not joined the others yet."""
        return self._ring is None

    @property
    def is_awaited(self) -> bool:
        """Whether a rank that was started again waits to be admitted."""
        return self._door.is_told("waiting", self._generation)

    def allreduce(self, array: Any, op: str = "mean", out: Any = None) -> Any:
        """See `Ring.allreduce`; the mean is that of the ranks that are there."""
        array = np.asarray(array, order="C")
        flat = array.reshape(-1)
        into = np.empty_like(flat) if out is None else out.reshape(-1)
        (made,) = self._call(lambda ring: [ring.allreduce(flat, op, into)], flat)
        if made is not into:
            into[...] = made
        # What the caller may write to is not what other ranks may still need.
        return into.reshape(array.shape).copy() if out is None else out

    def reduce_scatter(self, array: Any, op: str = "mean") -> Any:
        """See `Ring.reduce_scatter`; as each rank gets something else, by way of the whole."""
        whole = self.allreduce(array, op)
        begin, end = (len(whole) * r // self.size for r in (self.rank, self.rank + 1))
        return whole[begin:end].copy()

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """See `Ring.broadcast`; if that rank is lost meanwhile, the first one's."""
        if root not in range(self.size):
            raise ValueError(f"root is {root!r}; expected a rank, from 0 to {self.size - 1}.")
        of = self.members[root]
        return self._broadcast(array, lambda: self.members.index(of) if of in self.members else 0)

    def allgather(self, array: Any) -> list[Any]:
        """See `Ring.allgather`; of the ranks that are there."""
        array = np.asarray(array, order="C")
        rows = np.atleast_1d(array)
        parts = self._call(lambda ring: ring.allgather(rows), rows, gathers=True)
        return [part.copy() if array.ndim else part.reshape(()).copy() for part in parts]

    def close(self) -> None:
        """Leave the ring; the neighbours notice at once."""
        if self._ring:
            self._ring.close()

    def meet(self) -> bool:
        """Make a new ring with all that are there, and with those that wait.

        All ranks must call it, at the same point of the training.

        Returns:
            Whether one of them lacks the state: then `share` it.
        """
        with self._elastic_lock:
            self._regroup(True, [])
        return not all(self._have_state)

    def share(self, variables: Sequence[Any], place: Any) -> Any:
        """Give those that lack the state of the training what the others have.

        Args:
            variables: of Keras or TensorFlow, the same on all ranks.
            place: how far the training is, as JSON can hold it; None from those that do not know.

        Returns:
            The place of those that know it.
        """
        told = self.allgather_object(place)
        for variable in variables:
            value = self._broadcast(variable.numpy(), lambda: self.root)
            if not self.has_state:
                variable.assign(value)
        self.has_state = True
        return next(one for one in told if one is not None)

    def _broadcast(self, array: Any, root: Callable[[], int]) -> Any:
        array = np.asarray(array, order="C")
        flat = array.reshape(-1)
        (made,) = self._call(lambda ring: [ring.broadcast(flat, root())], flat)
        return made.reshape(array.shape).copy()

    def _call(
        self, collective: Callable[[Ring], list[Any]], like: Any, gathers: bool = False
    ) -> list[Any]:
        """What a collective gives, in spite of lost ranks.

        Args:
            collective: gives arrays that are the same on all ranks: one, or one of each rank.
            like: an array with rows as theirs.
            gathers: it gives one of each rank.
        """
        with self._elastic_lock:
            while True:
                if self._ring is None:
                    raise RuntimeError(_LATE)
                none = [like[:0]] * (self.size if gathers else 1)
                try:
                    parts = collective(self._ring)
                except PeerLostError as exc:
                    if not self.recovers:
                        self.broken = exc
                        raise
                    missed = self._regroup(False, none)
                    if missed is None:
                        continue
                    parts = missed
                except Exception:
                    self.broken = self._ring.broken
                    raise
                self._count, self._last = self._count + 1, parts
                return parts

    def _regroup(self, is_calm: bool, none: list[Any]) -> list[Any] | None:
        """Make a new ring.

        Args:
            is_calm: this rank stands between two steps; newcomers may join if all do.
            none: what the collective that was cut short gives, without any rows.

        Returns:
            What came of that collective if another rank knows it already.
        """
        while True:
            self.close()
            what = {"is_calm": is_calm, "has_state": self.has_state}
            invitation, listener = self._door.ask(self._generation, **what)
            self._generation = invitation.generation
            try:
                with joining(self._me):
                    ring = join(invitation, listener, self._is_off)
                told = ring.allgather_object([self._count, self.has_state])
                self._enter(ring, invitation, told)
                return None if invitation.is_calm else self._passed_on(ring, told, none)
            except PeerLostError:
                continue

    def _is_off(self) -> bool:
        return self._door.is_told("off", self._generation)

    def _enter(self, ring: Ring, invitation: Invitation, told: Sequence[Any]) -> None:
        """Take part in a new ring, of whose ranks these counts and states are told."""
        self._ring, self.broken = ring, None
        self.rank, self.size, self.nodes = ring.rank, ring.size, ring.nodes
        self.members = list(invitation.members)
        self._have_state = [has for _, has in told]
        if not any(self._have_state):
            raise RuntimeError("no rank is left that has the state of the training")
        self.root = self._have_state.index(True)
        if invitation.is_calm:
            self._count = max(count for count, _ in told)
        chief = self.members[0]
        context.activate(dataclasses.replace(context.current(), chief=chief))

    def _passed_on(self, ring: Ring, told: Sequence[Any], none: list[Any]) -> list[Any] | None:
        """The result that only some ranks have of the collective that was cut short."""
        counts = [count for count, _ in told]
        if min(counts) == max(counts):
            return None
        is_behind, knows = self._count < max(counts), counts.index(max(counts))
        passed = [ring.allgather(part)[knows] for part in (none if is_behind else self._last)]
        return passed if is_behind else None
