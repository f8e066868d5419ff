"""Runs in the training process. A ring that outlives the loss of a rank.

The remaining ranks form a new ring and repeat the collective that was interrupted; the caller does
not notice. Each collective needs all ranks, so no rank is more than one collective ahead of
another, and a rank that has the result already passes it to the ranks that lack it. A restarted
rank waits until all other ranks are between two steps, see `ElasticRing.meet`; they give it the
state of the training.
"""

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
from sparkdl.distribute.operands import as_array
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.rows import check_splits, row_slices, split_rows
from sparkdl.distribute.step_times import step_times
from sparkdl.errors import PeerLostError

_NOT_JOINED = (
    "this rank was restarted while the other ranks were training: it cannot call a collective "
    "before it has joined them. fit of a model with distribute.optimizer joins them, and so does "
    "hvd.elastic.run. Remove the collectives before these calls, or run without elastic=True."
)


class _InvitationChannel:
    """The channel to this process's task, which invites it to one ring after another.

    Args:
        descriptor: file descriptor of this process's end of the channel.
    """

    def __init__(self, descriptor: int) -> None:
        if os.getsid(0) != os.getpid():
            raise EOFError("this is not the training process, but a process started by it")
        self._end = socket.socket(fileno=descriptor)
        self._notices: set[tuple[str, int]] = set()

    def request(
        self, generation: int, *, between_steps: bool, has_state: bool
    ) -> tuple[Invitation, socket.socket]:
        """Request the next ring from the task, and wait for the invitation.

        Args:
            generation: number of the previous ring; -1 before the first.
            between_steps: this rank has no collective that was interrupted.
            has_state: this rank has the state of the training.

        Returns:
            The invitation, and the listening socket of this rank.
        """
        # The keys are part of the protocol, see `cluster.gang.membership`.
        request = {"generation": generation, "is_calm": between_steps, "has_state": has_state}
        self._end.send(json.dumps(request).encode())
        while True:
            packet, descriptors, _, _ = socket.recv_fds(self._end, PACKET_BYTES, 1)
            if descriptors:
                return Invitation.parse(packet, descriptors[0])
            self._add_notice(packet)

    def has_notice(self, kind: str, generation: int) -> bool:
        """Return True if the task has sent a notice about a ring.

        Args:
            kind: `waiting` if a rank waits to be admitted, `off` if the ring cannot be completed.
            generation: number of the ring.
        """
        try:
            while True:
                self._add_notice(self._end.recv(PACKET_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return (kind, generation) in self._notices

    def _add_notice(self, packet: bytes) -> None:
        if not packet:
            raise PeerLostError("lost the task of this rank: it closed the channel")
        notice = json.loads(packet)
        self._notices.add((notice["what"], notice["generation"]))


class ElasticRing(Ring):
    """The ring of an elastic gang. Its ranks are the processes that are present at the time.

    Args:
        me: context of this process.
        descriptor: file descriptor of this process's end of the channel to its task.

    Attributes:
        members: ranks in the gang of the ranks of the ring, by rank.
        root: the first rank that has the state of the training.
        recovers: form a new ring when a rank is lost. If False, collectives raise `PeerLostError`
            then, and the caller continues with `meet`.
        has_state: True if this rank has the state of the training.
        has_trained: True after the first `fit`; a rank that joins later would start with that
            `fit` again.
    """

    def __init__(self, me: Context, descriptor: int) -> None:
        super().__init__(range(me.world_size), me.rank, nodes=[""] * me.world_size)
        self.is_alone = False
        self.members = list(range(me.world_size))
        self.root = 0
        self.recovers = True
        self.has_trained = False
        self.has_state = not me.is_late
        self._me = me
        self._channel = _InvitationChannel(descriptor)
        self._generation = -1
        self._ring: Ring | None = None
        self._num_results = 0
        self._last_result = list[Any]()
        self._have_state = [True]
        self._elastic_lock = threading.RLock()
        if not me.is_late:
            self.meet()

    @property
    def is_late(self) -> bool:
        """Return True if this rank was restarted, and has not joined the other ranks yet."""
        return self._ring is None

    @property
    def is_awaited(self) -> bool:
        """Return True if a restarted rank waits to be admitted."""
        return self._channel.has_notice("waiting", self._generation)

    def allreduce(self, array: Any, op: str = "mean", out: Any = None) -> Any:
        """Return the reduction over the ranks that are present, see `Ring.allreduce`."""
        array = as_array(array)
        # The stored result may be passed to other ranks, while the caller writes to `out`.
        result = self._call_like(
            lambda ring: ring.allreduce(array, op, np.empty_like(array)), array
        )
        out = np.empty_like(array) if out is None else out
        out.reshape(-1)[...] = result.reshape(-1)
        return out

    def reduce_scatter(self, array: Any, op: str = "mean") -> Any:
        """Return this rank's rows of the reduction, see `Ring.reduce_scatter`.

        Each rank reduces the whole array, because a result can only be passed on if all ranks
        have the same.
        """
        whole = self.allreduce(array, op)
        return whole[row_slices(len(whole), self.size)[self.rank]].copy()

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """Return the array of rank `root`, or of the first rank if rank `root` is lost meanwhile.

        See `Ring.broadcast`.
        """
        if root not in range(self.size):
            raise ValueError(f"root is {root!r}; expected a rank, from 0 to {self.size - 1}.")
        member = self.members[root]

        def current_root() -> int:
            return self.members.index(member) if member in self.members else 0

        return self._broadcast(array, current_root)

    def allgather(self, array: Any) -> list[Any]:
        """Return the arrays of the ranks that are present, see `Ring.allgather`."""
        array = as_array(array)
        rows = np.atleast_1d(array)
        parts = self._call(lambda ring: ring.allgather(rows), rows, gathers=True)
        return [part.copy() if array.ndim else part.reshape(()).copy() for part in parts]

    def allgather_rows(self, array: Any) -> tuple[Any, list[int]]:
        """Return the rows of the ranks that are present, see `Ring.allgather_rows`."""
        parts = self.allgather(array)
        return np.concatenate(parts), [len(part) for part in parts]

    def alltoall_rows(self, array: Any, splits: Sequence[int]) -> tuple[Any, list[int]]:
        """Return the rows that the ranks that are present have for this rank.

        Each rank receives all rows, because a result can only be passed on if all ranks have the
        same. See `Ring.alltoall_rows`.
        """
        array = as_array(array)
        check_splits(array, splits, self.size)
        with self._elastic_lock:
            members = self.members
            tables, arrays = self.allgather(np.array(splits, np.int64)), self.allgather(array)
            if self.members != members:
                raise PeerLostError("a rank was lost during alltoall, and the rows for it with it")
        pairs = zip(tables, arrays, strict=True)
        parts = [split_rows(rows, table.tolist())[self.rank] for table, rows in pairs]
        return np.concatenate(parts), [len(part) for part in parts]

    def vote(self, vote: int, array: Any = None, op: str = "mean", out: Any = None) -> int:
        """Return the smallest vote of the ranks that are present, see `Ring.vote`.

        A rank gives an array only with the largest vote.
        """
        with self._elastic_lock:
            smallest = int(self.allreduce(np.array([vote], np.uint8), "min")[0])
            if array is not None and smallest == vote:
                self.allreduce(array, op, out)
        return smallest

    def allgather_record(self, record: bytes) -> list[bytes]:
        """Return the records of the ranks that are present, see `Ring.allgather_record`."""
        return [part.tobytes() for part in self.allgather(np.frombuffer(record, np.uint8))]

    def close(self) -> None:
        """Leave the ring; the neighbours notice at once."""
        if self._ring:
            self._ring.close()

    def meet(self) -> bool:
        """Form a new ring of the ranks that are present and the ranks that wait to be admitted.

        All ranks must call it, at the same point of the training.

        Returns:
            True if a rank lacks the state of the training: then call `share`.
        """
        with self._elastic_lock:
            self._regroup(between_steps=True, empty=[])
        return not all(self._have_state)

    def share(self, variables: Sequence[Any], position: Any) -> Any:
        """Give the ranks that lack the state of the training the state of the other ranks.

        Args:
            variables: Keras or TensorFlow variables, the same on all ranks.
            position: the position in the training, as a value that JSON can hold; None on ranks
                that do not know it.

        Returns:
            The position of the ranks that know it.
        """
        positions = self.allgather_object(position)
        for variable in variables:
            value = self._broadcast(variable.numpy(), lambda: self.root)
            if not self.has_state:
                variable.assign(value)
        self.has_state = True
        return next(known for known in positions if known is not None)

    def pass_on(self, data: bytes) -> bytes:
        """Return bytes of the first rank that has the state of the training; before `share`.

        Args:
            data: the bytes of this rank, not empty if it has the state.
        """
        while True:
            is_root = self.has_state and self.rank == self.root
            parts = self.allgather_record(data if is_root else b"")
            if state := next((part for part in parts if part), b""):
                return state
            # The first rank is lost; another rank has become the first.

    def _broadcast(self, array: Any, root: Callable[[], int]) -> Any:
        array = as_array(array)

        def broadcast(ring: Ring) -> Any:
            # A broadcast alone does not wait for ranks that only receive: its root could be two
            # results ahead of them.
            ring.barrier()
            return ring.broadcast(array, root())

        return self._call_like(broadcast, array).copy()

    def _call_like(self, collective: Callable[[Ring], Any], array: Any) -> Any:
        """Return the result of a collective that has the shape of an array, see `_call`."""
        # A missed result comes as rows, and a number has none.
        (result,) = self._call(lambda ring: [collective(ring).reshape(-1)], array.reshape(-1))
        return result.reshape(array.shape)

    def _call(
        self, collective: Callable[[Ring], list[Any]], like: Any, gathers: bool = False
    ) -> list[Any]:
        """Return the result of a collective, and form new rings if ranks are lost.

        Args:
            collective: returns arrays that are equal on all ranks: one array, or one per rank.
            like: an array whose rows have the dtype and shape of the rows of the results.
            gathers: the collective returns one array per rank.
        """
        with self._elastic_lock:
            while True:
                if self._ring is None:
                    raise RuntimeError(_NOT_JOINED)
                empty = [like[:0]] * (self.size if gathers else 1)
                try:
                    result = collective(self._ring)
                except PeerLostError as exc:
                    if not self.recovers:
                        self.broken = exc
                        raise
                    missed = self._regroup(between_steps=False, empty=empty)
                    if missed is None:
                        continue
                    result = missed
                except Exception:
                    self.broken = self._ring.broken
                    raise
                self._num_results += 1
                self._last_result = result
                return result

    def _regroup(self, between_steps: bool, empty: list[Any]) -> list[Any] | None:
        """Form a new ring.

        Args:
            between_steps: this rank is between two steps; waiting ranks may join if all are.
            empty: the result of the interrupted collective, without any rows.

        Returns:
            The result of the interrupted collective if another rank has it already.
        """
        while True:
            self.close()
            invitation, listener = self._channel.request(
                self._generation, between_steps=between_steps, has_state=self.has_state
            )
            self._generation = invitation.generation
            try:
                with joining(self._me):
                    ring = join(invitation, listener, self._is_cancelled)
                reports = ring.allgather_object([self._num_results, self.has_state])
                self._enter(ring, invitation, reports)
                return None if invitation.is_calm else self._missed_result(ring, reports, empty)
            except PeerLostError:
                continue

    def _is_cancelled(self) -> bool:
        return self._channel.has_notice("off", self._generation)

    def _enter(self, ring: Ring, invitation: Invitation, reports: Sequence[Any]) -> None:
        """Take part in a new ring.

        Args:
            ring: the new ring.
            invitation: the invitation to the new ring.
            reports: of each rank the number of its results, and True if it has the state.
        """
        self._ring = ring
        ring.is_world = True
        step_times().restart(invitation.generation)
        self.broken = None
        self.rank = ring.rank
        self.size = ring.size
        self.nodes = ring.nodes
        self.members = list(invitation.members)
        self._have_state = [has_state for _, has_state in reports]
        if not any(self._have_state):
            raise RuntimeError("all ranks that had the state of the training are lost")
        self.root = self._have_state.index(True)
        if invitation.is_calm:
            self._num_results = max(num_results for num_results, _ in reports)
        context.elect(self.members[0], self.members)

    def _missed_result(
        self, ring: Ring, reports: Sequence[Any], empty: list[Any]
    ) -> list[Any] | None:
        """Return the result of the interrupted collective if only other ranks have it."""
        counts = [num_results for num_results, _ in reports]
        if min(counts) == max(counts):
            return None
        is_behind = self._num_results < max(counts)
        sender = counts.index(max(counts))
        parts = empty if is_behind else self._last_result
        result = [ring.allgather(part)[sender] for part in parts]
        return result if is_behind else None
