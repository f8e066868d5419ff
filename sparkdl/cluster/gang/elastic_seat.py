"""Runs in a Spark task. Bring the training process of an elastic rank from one ring to the next."""

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sparkdl.cluster.executor_name import this_executor
from sparkdl.cluster.gang.membership import (
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
from sparkdl.polling import Outages
from sparkdl.rank_files import Listing, RankFiles

__all__ = ["ALL_LOST", "LEFT_BEHIND", "ElasticSeat", "post_request"]

# Reasons for which a process is ended.
LEFT_BEHIND = "the other ranks went on without it"
REPLACED = "Spark has started this rank elsewhere"
ALL_LOST = "all ranks of the gang were lost at once"
GIVEN_UP = "Spark has given up the executor of this rank"


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
        self._peer = placement.peers[placement.rank]
        incarnation = newest_incarnation(self._files, placement.rank)
        self._process = placement.rank, incarnation
        self._members = read_generation(self._files, 0).processes
        is_late = self._process not in self._members
        self._listener: socket.socket | None = None if is_late else placement.listener
        # The generation of the ring that the process is in, or joins as soon as it asks; and the
        # generation that was asked for.
        self._current = -1 if is_late else 0
        self._requested = -1 if is_late else 0
        self._asked: dict[str, Any] | None = None
        self._sent: set[str] = set()
        self._poll_s = self._files.poll_s(plan.size)
        self._outages = Outages("list the messages of an elastic gang")
        self._looked_s = 0.0
        me: dict[str, Any] = {"is_elastic": True, "is_late": is_late}
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
                self._asked, self._looked_s = json.loads(packet), 0.0
        if time.monotonic() - self._looked_s < self._poll_s:
            return None
        self._looked_s = time.monotonic()
        reason = None
        with self._outages.tolerated():
            reason = self._look(self._files.look())
        return reason

    def _look(self, seen: Listing) -> str | None:
        newest = max(generations(seen), default=max(self._current, 0))
        rank, incarnation = self._process
        begun = incarnations(seen)
        if begun.get(rank, incarnation) > incarnation:
            return REPLACED
        gone = set(seen.numbered("gone"))
        if self._process in gone:
            return GIVEN_UP
        if self._asked:
            return self._request(seen, newest, self._asked)
        if newest > self._current >= 0:
            return LEFT_BEHIND if read_generation(self._files, newest).members else ALL_LOST
        if self._current < 0:
            return self._missed(seen, newest)
        following = self._current + 1
        asking = {(r, inc) for n, r, inc in seen.numbered("here") if n == following}
        if asking and f"alive-{following}" not in self._sent:
            self._files.post_numbered("alive", following, rank, incarnation)
            self._sent.add(f"alive-{following}")
        if asking - self._members - gone:
            self._notify("waiting")
        is_lost = any(begun.get(r, inc) > inc for r, inc in self._members)
        if is_lost or self._members & (asking | gone):
            self._notify("off")
        return None

    def _request(self, seen: Listing, newest: int, asked: Mapping[str, Any]) -> str | None:
        """Ask for the ring that the process asked for; invite the process when it is formed."""
        at = asked["generation"]
        if self._requested <= at or self._requested < 0:
            wanted = at + 1 if at >= 0 else newest + 1
            post_request(self._files, wanted, self._join_request(asked))
            self._requested = wanted
        if newest < self._requested:
            return self._missed(seen, newest) if self._current < 0 else None
        formed = read_generation(self._files, self._requested)
        if self._process not in formed.processes:
            self._requested = -1  # A process that comes late asks for the next ring then.
            if not formed.members:
                return ALL_LOST
            return None if self._current < 0 else LEFT_BEHIND
        self._current = self._requested
        self._members = formed.processes
        self._asked = None
        self._invite(formed)
        return None

    def _join_request(self, asked: Mapping[str, Any]) -> JoinRequest:
        self._listener = self._listener or listen(self._peer.address)
        rank, incarnation = self._process
        return JoinRequest(
            rank=rank,
            incarnation=incarnation,
            address=self._peer.address,
            port=self._listener.getsockname()[1],
            node=self._peer.node,
            between_steps=asked["is_calm"],
            has_state=asked["has_state"],
            executor=this_executor(),
        )

    def _invite(self, formed: Generation) -> None:
        members = formed.members
        invitation = Invitation(
            [member.rank for member in members].index(self._process[0]),
            [Endpoint(member.address, member.port, member.node) for member in members],
            self._secret,
            self._current,
            join_s=self._plan.start_timeout_s,
            timeout_s=self._plan.collective_timeout_s,
            members=[member.rank for member in members],
            is_calm=formed.between_steps,
        )
        listener, self._listener = self._listener, None
        if listener:
            with contextlib.suppress(BrokenPipeError):  # The process has just died.
                invitation.send(self._mine, listener)

    def _missed(self, seen: Listing, newest: int) -> str | None:
        """Return the reason to end a process that the others did not wait for; None to wait."""
        done, begun = seen.ranks("done"), incarnations(seen)
        members = read_generation(self._files, newest).members
        if not members:
            return ALL_LOST
        current = [m for m in members if begun.get(m.rank, 0) <= m.incarnation]
        if any(member.rank not in done for member in current):
            return None
        # The chief has the result of the run: without it, all begin again from the checkpoint.
        return COMPLETE if self._files.has_posted(members[0].rank, "done") else ALL_LOST

    def _notify(self, event: str) -> None:
        """Tell the process about its ring, once for each ring."""
        if f"{event}-{self._current}" not in self._sent:
            self._sent.add(f"{event}-{self._current}")
            with contextlib.suppress(OSError):
                message = {"what": event, "generation": self._current}
                self._mine.send(json.dumps(message).encode())
