"""Runs in a Spark task. Bring the training process of an elastic rank from one ring to the next."""

import contextlib
import json
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sparkdl.cluster.executor_name import this_executor
from sparkdl.cluster.gang.membership import (
    INCARNATIONS,
    Generation,
    JoinRequest,
    generations,
    incarnations,
    newest_incarnation,
    read_generation,
)
from sparkdl.cluster.gang.placement import Placement, RingSeat
from sparkdl.cluster.gang.rendezvous import listen
from sparkdl.cluster.gang.supervisor import COMPLETE
from sparkdl.cluster.plan import Plan
from sparkdl.distribute.invitation import PACKET_BYTES, Endpoint, Invitation, channel
from sparkdl.files.polling import Outages
from sparkdl.files.rank_files import Listing, RankFiles

# Reasons for which a process is ended.
LEFT_BEHIND = "the other ranks went on without it"
REPLACED = "Spark has started this rank elsewhere"
ALL_LOST = "all ranks of the gang were lost at once"
GIVEN_UP = "Spark has given up the executor of this rank"
GIVEN_BACK = "its slot was given back, as other work waited for slots"

# A process that is asked to leave, and comes to no place between two steps in this time, is ended.
LEAVE_S = 60.0


def post_request(files: RankFiles, generation: int, request: JoinRequest) -> None:
    """Ask the driver for a place in the ring of a generation."""
    numbers = generation, request.rank, request.incarnation
    files.post_numbered("here", *numbers, data=json.dumps(asdict(request)))


class ElasticSeat(RingSeat):
    """The seat of one training process in the rings that come one after the other.

    The process asks for the next ring over its channel when a collective was cut short, or when it
    was told that a rank is waiting. The task asks the driver by files, and invites the process
    when the driver has decided.

    Args:
        plan: the plan of the gang.
        placement: the rank.
        secret: the key by which the ranks of this attempt recognise each other.
    """

    def __init__(self, plan: Plan, placement: Placement, secret: bytes) -> None:
        self._plan = plan
        self._files = placement.files
        self._secret = secret
        self._mine, theirs = channel()
        self._peer = placement.peer
        self._first = least = placement.incarnation
        incarnation = newest_incarnation(self._files, placement.rank, least)
        self._process = placement.rank, incarnation
        # It waits while the others train.
        self._is_standby = incarnation == least and not placement.is_member()
        self._members = read_generation(self._files, 0).processes
        is_late = self._process not in self._members
        self._listener: socket.socket | None = None if is_late else placement.listener
        # The generation of the ring that the process is in, or joins as soon as it asks; and the
        # generation that was asked for.
        self._current = -1 if is_late else 0
        self._requested = -1 if is_late else 0
        self._process_request: dict[str, Any] | None = None
        self._sent_notes: set[str] = set()
        self._poll_s = self._files.poll_s(plan.size)
        self._outages = Outages("list the messages of an elastic gang")
        self._looked_s = 0.0
        self._asked_to_leave_s: float | None = None
        me: dict[str, Any] = {"is_elastic": True, "is_late": is_late, "grows": plan.grows}
        if is_late or incarnation:
            me["checkpoint"] = None  # The process is given the state of the others, which is newer.
        super().__init__({"ring": theirs}, me)

    def __exit__(self, *_: object) -> None:
        self._mine.close()
        if self._listener:
            self._listener.close()

    def watch(self) -> str | None:
        """Pass on requests of the process and decisions; return the reason to end it, or None."""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):  # The process has ended.
            if packet := self._mine.recv(PACKET_BYTES):
                self._process_request, self._looked_s = json.loads(packet), 0.0
        if time.monotonic() - self._looked_s < self._poll_s:
            return None
        self._looked_s = time.monotonic()
        reason = None
        with self._outages.tolerated():
            reason = self._look(self._files.look())
        return reason

    def _look(self, listing: Listing) -> str | None:
        newest = max(generations(listing), default=max(self._current, 0))
        rank, incarnation = self._process
        newest_incarnations = incarnations(listing)
        if newest_incarnations.get(rank, incarnation) > incarnation:
            return REPLACED
        gone_processes = set(listing.numbered("gone"))
        if self._process in gone_processes:
            return GIVEN_UP
        asked_to_leave = listing.numbered("leaves")
        if (rank, self._first) in asked_to_leave and self._has_to_go():
            self._files.post_numbered("gone", *self._process)  # The others need not wait for it.
            return GIVEN_BACK
        if self._process_request:
            return self._request(listing, newest, self._process_request)
        if newest > self._current >= 0:
            return self._reason_to_leave(read_generation(self._files, newest))
        if self._current < 0:
            return self._exit_reason(listing, newest)
        following = self._current + 1
        asking = {(r, inc) for n, r, inc in listing.numbered("here") if n == following}
        if asking and f"alive-{following}" not in self._sent_notes:
            self._files.post_numbered("alive", following, rank, incarnation)
            self._sent_notes.add(f"alive-{following}")
        if asking - self._members - gone_processes or self._has_leaving(asked_to_leave):
            self._notify("waiting")
        is_lost = any(newest_incarnations.get(r, inc) > inc for r, inc in self._members)
        if is_lost or self._members & (asking | gone_processes):
            self._notify("off")
        return None

    def _request(self, listing: Listing, newest: int, request: Mapping[str, Any]) -> str | None:
        """Ask for the ring that the process asked for; invite the process when it is formed."""
        at = request["generation"]
        if self._requested <= at or self._requested < 0:
            number = at + 1 if at >= 0 else newest + 1
            if self._is_standby:
                self._files.post_numbered("moves", *self._process)
            post_request(self._files, number, self._join_request(request))
            self._requested = number
        if newest < self._requested:
            return self._exit_reason(listing, newest) if self._current < 0 else None
        generation = read_generation(self._files, self._requested)
        if self._process not in generation.processes:
            self._requested = -1  # A process that comes late asks for the next ring then.
            is_late = generation.members and self._current < 0
            return None if is_late else self._reason_to_leave(generation)
        if self._is_standby:
            self._files.post_numbered("began", *self._process, data=json.dumps(asdict(self._peer)))
            self._is_standby = False
        self._current = self._requested
        self._members = generation.processes
        self._process_request = None
        self._invite(generation)
        return None

    def _has_leaving(self, asked_to_leave: Iterable[tuple[int, ...]]) -> bool:
        """Return True if a process of the ring is asked to leave.

        Args:
            asked_to_leave: the rank of each task that is, and the number of its first process.
        """
        return any(
            rank == other and first <= incarnation < first + INCARNATIONS
            for rank, first in asked_to_leave
            for other, incarnation in self._members
        )

    def _has_to_go(self) -> bool:
        """Return True if this process, which is asked to leave, need not or cannot be waited for.

        One that is in the ring leaves between two steps, which keeps the collectives of the others
        whole. Its program may come to no such place.
        """
        now = time.monotonic()
        self._asked_to_leave_s = self._asked_to_leave_s or now
        return self._current < 0 or now - self._asked_to_leave_s > LEAVE_S

    def _reason_to_leave(self, generation: Generation) -> str:
        """Return the reason to end a process that a ring of the others is without."""
        if not generation.members:
            return ALL_LOST
        if self._first >= 0 and self._files.has_numbered("leaves", self._process[0], self._first):
            return GIVEN_BACK
        has_moved = self._process[0] in [member.rank for member in generation.members]
        return REPLACED if has_moved else LEFT_BEHIND

    def _join_request(self, request: Mapping[str, Any]) -> JoinRequest:
        self._listener = self._listener or listen(self._peer.address)
        rank, incarnation = self._process
        return JoinRequest(
            rank=rank,
            incarnation=incarnation,
            address=self._peer.address,
            port=self._listener.getsockname()[1],
            node=self._peer.node,
            between_steps=request["is_calm"],
            has_state=request["has_state"],
            executor=this_executor(),
        )

    def _invite(self, generation: Generation) -> None:
        members = generation.members
        invitation = Invitation(
            [member.rank for member in members].index(self._process[0]),
            [Endpoint(member.address, member.port, member.node) for member in members],
            self._secret,
            self._current,
            join_s=self._plan.start_timeout_s,
            timeout_s=self._plan.collective_timeout_s,
            members=[member.rank for member in members],
            is_calm=generation.between_steps,
        )
        listener, self._listener = self._listener, None
        if listener:
            # The process has just died.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                invitation.send(self._mine, listener)

    def _exit_reason(self, listing: Listing, newest: int) -> str | None:
        """Return the reason to end a process that the others did not wait for; None to wait."""
        done_ranks, newest_incarnations = listing.ranks("done"), incarnations(listing)
        members = read_generation(self._files, newest).members
        if not members:
            return ALL_LOST
        current = [m for m in members if newest_incarnations.get(m.rank, 0) <= m.incarnation]
        if any(member.rank not in done_ranks for member in current):
            return None
        # The chief has the result of the run: without it, all begin again from the checkpoint.
        return COMPLETE if self._files.has_posted(members[0].rank, "done") else ALL_LOST

    def _notify(self, event: str) -> None:
        """Tell the process about its ring, once for each ring."""
        if f"{event}-{self._current}" not in self._sent_notes:
            self._sent_notes.add(f"{event}-{self._current}")
            with contextlib.suppress(OSError):
                message = {"what": event, "generation": self._current}
                self._mine.send(json.dumps(message).encode())
