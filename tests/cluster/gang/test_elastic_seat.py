"""A further rank comes to its place, and leaves it: its task and the decisions, without Spark."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.cluster.gang import elastic_policy
from sparkdl.cluster.gang import elastic_seat as module
from sparkdl.cluster.gang.elastic_policy import StandbyPolicy
from sparkdl.cluster.gang.elastic_seat import GIVEN_BACK, ElasticSeat
from sparkdl.cluster.gang.membership import INCARNATIONS, Membership
from sparkdl.cluster.gang.placement import Placement
from sparkdl.cluster.gang.rendezvous import Peer, listen
from sparkdl.cluster.gang.task import run_rank
from sparkdl.cluster.outcome import Status
from sparkdl.cluster.plan import Plan, Role
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.rank_files import RankFiles
from tests.cluster.gang.test_membership import ask, begin, started

PLAN = Plan(
    kind="allreduce",
    roles=(Role(name="worker", count=4, min_count=2, in_ring=True),),
    is_gang=True,
    elastic=True,
)
RANK = 3


class Late:
    """The task and the training process of a further rank, beside two ranks that the test plays."""

    def __init__(self, folder: Path) -> None:
        paths = TrialPaths(str(folder))
        self.files = RankFiles(paths.ranks(0))
        storage.make_directory(self.files.url)
        self.membership = started(self.files, 2)
        listener = listen("127.0.0.1")
        self.listener = listener
        peer = Peer("127.0.0.1", 1, "a", "a", listener.getsockname()[1])
        placement = Placement(
            member=PLAN.members[RANK],
            attempt=0,
            peers=[peer, peer, peer],
            paths=paths,
            listener=listener,
            incarnation=INCARNATIONS,
        )
        self.placement = placement
        self.seat = ElasticSeat(PLAN, placement, b"secret")
        self.seat._poll_s = 0.0
        self.end: socket.socket = self.seat.sockets["ring"]
        self.end.setblocking(False)

    def requests(self, generation: int, has_state: bool) -> str | None:
        """Let the process ask for a ring."""
        request = {"generation": generation, "is_calm": True, "has_state": has_state}
        self.end.send(json.dumps(request).encode())
        return self.seat.watch()

    def packet(self) -> Any:
        packet, descriptors, _, _ = socket.recv_fds(self.end, 1 << 20, 1)
        for descriptor in descriptors:
            socket.close(descriptor)
        return json.loads(packet)

    def others_ask(self, number: int) -> None:
        for rank in (0, 1):
            ask(self.files, number, rank, 0)
        self.membership.look()

    def comes_in(self) -> None:
        assert self.requests(-1, has_state=False) is None
        self.others_ask(1)
        assert self.membership.members == {0: 0, 1: 0, RANK: INCARNATIONS}
        assert self.seat.watch() is None
        assert self.packet()["members"] == [0, 1, RANK]
        assert self.placement.is_member()


@pytest.fixture
def late(tmp_path: Path) -> Iterator[Late]:
    made = Late(tmp_path)
    yield made
    made.seat.__exit__()
    made.end.close()
    made.listener.close()


def test_context_says_that_ranks_come_and_leave(late: Late) -> None:
    assert (late.seat.me["grows"], late.seat.me["is_late"]) == (True, True)
    assert late.placement.place == 2  # Of the ranks that it knows, it is the last one.


@pytest.mark.parametrize("has_unread", [False, True])
def test_process_that_dies_before_its_invitation_is_no_outage_of_the_store(
    late: Late,
    has_unread: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The kernel tells of the end in two ways: what the process has not read counts."""
    assert late.requests(-1, has_state=False) is None
    late.others_ask(1)
    if has_unread:
        late.seat._mine.send(b"{}")
    send, errors = module.Invitation.send, list[type[Exception]]()

    def die_and_send(invitation: Any, end: socket.socket, listener: socket.socket) -> None:
        late.end.close()
        try:
            send(invitation, end, listener)
        except OSError as exc:
            errors.append(type(exc))
            raise

    monkeypatch.setattr(module.Invitation, "send", die_and_send)
    assert late.seat.watch() is None
    assert caplog.text == ""  # The store of the run is not at fault.
    assert errors == [ConnectionResetError if has_unread else BrokenPipeError]


def test_rank_that_is_asked_to_leave_goes_between_two_steps(late: Late) -> None:
    late.comes_in()
    late.membership.release(RANK, INCARNATIONS)
    assert late.seat.watch() is None
    assert late.packet() == {"what": "waiting", "generation": 1}
    assert late.requests(1, has_state=True) is None
    late.others_ask(2)
    assert late.membership.members == {0: 0, 1: 0}
    assert late.seat.watch() == GIVEN_BACK
    assert not late.files.has_numbered("gone", RANK, INCARNATIONS)


def test_rank_that_comes_to_no_place_between_two_steps_is_ended(
    late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    late.comes_in()
    late.membership.release(RANK, INCARNATIONS)
    assert late.seat.watch() is None
    monkeypatch.setattr(module, "LEAVE_S", -1.0)
    assert late.seat.watch() == GIVEN_BACK
    for rank in (0, 1):  # A collective of theirs was cut short.
        ask(late.files, 2, rank, 0, between_steps=False)
    late.membership.look()
    assert late.membership.members == {0: 0, 1: 0}


def test_rank_that_is_asked_to_leave_before_it_is_in_is_ended_at_once(late: Late) -> None:
    assert late.requests(-1, has_state=False) is None
    late.membership.release(RANK, INCARNATIONS)
    assert late.seat.watch() == GIVEN_BACK
    late.others_ask(1)
    assert late.membership.members == {0: 0, 1: 0}


@pytest.mark.parametrize("incarnation", [INCARNATIONS, INCARNATIONS + 1])
def test_the_others_do_not_wait_for_a_rank_that_was_lost_before_it_has_left(
    late: Late, incarnation: int
) -> None:
    late.comes_in()
    if incarnation > INCARNATIONS:  # Its task has started it again, and it is in.
        begin(late.files, RANK, incarnation)
        for number, has_state in ((2, False), (3, True)):
            ask(late.files, number, RANK, incarnation, has_state=has_state)
            late.others_ask(number)
    assert late.membership.members == {0: 0, 1: 0, RANK: incarnation}
    late.membership.release(RANK, INCARNATIONS)
    task: Any = SimpleNamespace(paths=late.placement.paths, trial=SimpleNamespace(attempt=0))
    policy = StandbyPolicy(INCARNATIONS, frozenset())  # Spark starts its task again.
    with ExitStack() as stack:
        outcome = policy.run(task, policy.meet(task, PLAN.members[RANK], stack), [])
    assert outcome and (outcome.status, outcome.error) == (Status.STOPPED, GIVEN_BACK)
    number = late.membership._number + 1
    for rank in (0, 1):
        ask(late.files, number, rank, 0, between_steps=False)
    late.membership.look()
    assert late.membership.members == {0: 0, 1: 0}


@pytest.mark.parametrize("step", ["_announce", "_first_peers"])
def test_further_rank_that_is_late_does_not_fail_the_gang(
    late: Late, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def is_late(*_: Any) -> Any:
        raise TimeoutError("it took longer than start_timeout_s")

    monkeypatch.setattr(elastic_policy, "_announce", lambda *_: (late.placement.peer, None))
    monkeypatch.setattr(elastic_policy, step, is_late)
    plan = SimpleNamespace(start_timeout_s=60.0)
    trial = SimpleNamespace(attempt=0)
    task: Any = SimpleNamespace(paths=late.placement.paths, trial=trial, plan=plan)
    policy = StandbyPolicy(INCARNATIONS, frozenset())
    with pytest.raises(RuntimeError, match=r"worker 3 cannot join: it took longer"):
        run_rank(task, policy, PLAN.members[RANK])
    assert not late.files.has_posted(RANK, "failed")


def test_request_of_an_earlier_process_to_leave_does_not_count(late: Late) -> None:
    late.files.post_numbered("leaves", RANK, 0)
    late.comes_in()
    assert late.seat.watch() is None


def test_other_ranks_are_told_that_a_rank_is_to_leave(tmp_path: Path) -> None:
    late = Late(tmp_path)
    peer = Peer("127.0.0.1", 1, "a", "a")
    first = Placement(
        member=PLAN.members[0], attempt=0, peers=[peer, peer], paths=late.placement.paths
    )
    late.comes_in()
    seat = ElasticSeat(PLAN, first, b"secret")
    seat._poll_s, seat._current = 0.0, 1
    seat._members = {(0, 0), (1, 0), (RANK, INCARNATIONS)}
    end = seat.sockets["ring"]
    end.setblocking(False)
    assert seat.watch() is None
    with pytest.raises(BlockingIOError):
        end.recv(1)
    late.membership.release(RANK, INCARNATIONS)
    assert seat.watch() is None
    assert json.loads(end.recv(1 << 20)) == {"what": "waiting", "generation": 1}
    for each in (late.seat, seat):
        each.__exit__()
    for each_end in (end, late.end, late.listener):
        each_end.close()


def test_membership_needs_only_the_ranks_of_the_own_job(tmp_path: Path) -> None:
    assert (PLAN.size, len(PLAN.members), PLAN.world_size) == (2, 4, 4)
    assert Membership(RankFiles(str(tmp_path)), PLAN.size, 60)._size == 2
