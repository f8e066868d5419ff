"""Runs in a Spark task. A rank of an elastic gang, whose processes come one after the other.

It is in no barrier stage, which Spark would end with the first task that is lost: each rank is a
task that Spark starts again by itself. They meet by files in the run directory, see `roster`.
"""

import contextlib
import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark import TaskContext

from sparkdl import storage
from sparkdl.cluster.gang.membership import Here, generations, lives_of, read_generation, told
from sparkdl.cluster.gang.placement import InRing, Placed
from sparkdl.cluster.gang.rendezvous import Peer, listen
from sparkdl.cluster.gang.supervisor import COMPLETE, Supervisor, look_s
from sparkdl.cluster.gang.task import GangTask
from sparkdl.cluster.gpus.assignment import assigned_gpus
from sparkdl.cluster.outcome import End, failure_of
from sparkdl.cluster.plan import Member, Plan
from sparkdl.cluster.trial_task import PER_ATTEMPT
from sparkdl.distribute.invitation import PACKET_BYTES, Endpoint, Invitation, channel
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.states import Failure

__all__ = ["ElasticTask"]

_LEFT_BEHIND = "the other ranks went on without it"
_REPLACED = "Spark has started this rank elsewhere"
_ALL_LOST = "all ranks of the gang were lost at once"


@dataclass(frozen=True)
class ElasticTask(GangTask):
    """Runs one rank of an elastic gang; the attributes are those of `TrialTask`, and two more.

    Attributes:
        secret: by which the ranks of this attempt know each other.
        driver: the driver's host. The way to it is the way to the other executors.
    """

    secret: bytes = field(default=b"", repr=False)
    driver: str = ""

    def _meet(
        self, member: Member, trial: TrialPaths, stack: contextlib.ExitStack
    ) -> tuple[Sequence[Peer], socket.socket | None, socket.socket | None]:
        folder, rank = trial.ranks(self.attempt), member.rank
        storage.make_directory(folder)
        mine, held, listener = self._present([self.driver], member, trial, stack)
        if held:
            held.close()
        life = _begin_life(folder, mine, rank)
        if not generations(storage.names(folder)):
            if rank == life == 0 and not mine.problem:
                self._supersede(trial, self.attempt, PER_ATTEMPT - {"ranks"})
            _want(folder, 0, Here(rank, life, mine.address, mine.ring_port, mine.node))
        while not generations(storage.names(folder)):
            time.sleep(look_s(folder))
        lives = {one.rank: one.life for one in read_generation(folder, 0)[0]} | {rank: life}
        said = (storage.read(storage.join(folder, f"began-{r}-{lives[r]}")) for r in sorted(lives))
        return [Peer(**json.loads(one)) for one in said], None, listener

    def _devices(
        self, here: Placed, supervisor: Supervisor
    ) -> "contextlib.AbstractContextManager[Mapping[str, str]]":
        return assigned_gpus(self.plan, self.run_id, TaskContext.get())

    def _environ(self, here: Placed, local: tuple[int, int]) -> dict[str, str]:
        return {}  # What frameworks make of these does not outlive the loss of a rank.

    def _checkpoint(self, here: Placed) -> str | None:
        # That of the first process of a rank: those that come late are given what is newer.
        lives = lives_of(storage.names(here.trial.ranks(here.attempt)))
        return None if lives[here.rank] else super()._checkpoint(here)

    def _place_in_ring(self, here: Placed) -> InRing:
        _bring_along(here)
        return _Usher(self.plan, here, here.trial.ranks(here.attempt), self.secret)

    def _lives_again(self, here: Placed, end: End) -> bool:
        if end.stopped == _ALL_LOST:
            raise ConnectionError(_ALL_LOST)
        is_killed = end.outcome is None and not end.stopped and failure_of(end) == Failure.SIGNAL
        if is_killed or end.stopped == _LEFT_BEHIND:
            _begin_life(here.trial.ranks(here.attempt), here.peers[here.rank], here.rank)
            return True
        return False


def _bring_along(here: Placed) -> None:
    """Get what an earlier process of this rank wrote on another host: it is continued."""
    role = here.member.role.name
    mine = {
        here.member.log,
        "metrics.jsonl" if here.rank == 0 else f"metrics-{role}-{here.rank}.jsonl",
    }
    for name in mine.intersection(storage.names(here.trial.folder)):
        if not (file := here.folder / name).exists():
            file.write_bytes(storage.read(storage.join(here.trial.folder, name)))


def _begin_life(folder: str, mine: Peer, rank: int) -> int:
    """Tell that a process of this rank begins, the first or one in place of another."""
    life = lives_of(storage.names(folder)).get(rank, -1) + 1
    storage.write(storage.join(folder, f"began-{rank}-{life}"), json.dumps(asdict(mine)))
    return life


def _want(folder: str, generation: int, here: Here) -> None:
    name = f"here-{generation}-{here.rank}-{here.life}"
    storage.write(storage.join(folder, name), json.dumps(asdict(here)))


class _Usher(InRing):
    """Brings a process from one ring to the next.

    Args:
        plan, here: of its rank.
        folder: where the tasks of this attempt tell what they know.
        secret: of this attempt.
    """

    def __init__(self, plan: Plan, here: Placed, folder: str, secret: bytes) -> None:
        self._plan, self._folder, self._secret = plan, folder, secret
        self._mine, theirs = channel()
        self._peer = here.peers[here.rank]
        self._me = here.rank, lives_of(storage.names(folder))[here.rank]
        self._members = _processes(read_generation(folder, 0)[0])
        is_late = self._me not in self._members
        self._listener: Any = None if is_late else here.listener
        # The ring that the process is in, or will be as soon as it asks; and the one it wants.
        self._at, self._wants = (-1, -1) if is_late else (0, 0)
        self._asked: dict[str, Any] | None = None
        self._said: set[str] = set()
        self._looked_s = 0.0
        who = {"is_elastic": True, "is_late": is_late}
        # One that comes late is given what the others have, which is newer.
        super().__init__({"ring": theirs}, {**who, "checkpoint": None} if is_late else who)

    def __exit__(self, *_: object) -> None:
        self._mine.close()
        if self._listener:
            self._listener.close()

    def watch(self) -> str | None:
        """Pass on what the process wants and what the others say; why to end it, or None."""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):  # It has ended.
            if packet := self._mine.recv(PACKET_BYTES):
                self._asked, self._looked_s = json.loads(packet), 0.0
        if time.monotonic() - self._looked_s < look_s(self._folder):
            return None
        self._looked_s = time.monotonic()
        with contextlib.suppress(OSError):  # The store fails for a moment: the next time.
            return self._look(storage.names(self._folder))
        return None

    def _look(self, names: Sequence[str]) -> str | None:
        newest, lives = max(generations(names)), lives_of(names)
        if lives[self._me[0]] != self._me[1]:
            return _REPLACED
        if self._asked:
            return self._bring(names, newest, self._asked)
        if newest > self._at >= 0:
            return _LEFT_BEHIND if read_generation(self._folder, newest)[0] else _ALL_LOST
        if self._at < 0:
            return self._missed(names, newest)
        following = {(r, life) for n, r, life in told(names, "here") if n == self._at + 1}
        if following:
            self._say(f"alive-{self._at + 1}-{self._me[0]}-{self._me[1]}")
        if following - self._members:
            self._tell("waiting")
        if following & self._members or any(lives[r] != life for r, life in self._members):
            self._tell("off")
        return None

    def _bring(self, names: Sequence[str], newest: int, asked: Mapping[str, Any]) -> str | None:
        """Bring the process into the ring that it asks for, when that is made."""
        at = asked["generation"]
        if self._wants <= at or self._wants < 0:
            wants = at + 1 if at >= 0 else newest + 1
            self._listener = self._listener or listen(self._peer.address)
            port = self._listener.getsockname()[1]
            peer = self._peer
            what = asked["is_calm"], asked["has_state"]
            here = Here(*self._me, peer.address, port, peer.node, *what)
            _want(self._folder, wants, here)
            self._wants = wants
        if newest < self._wants:
            return self._missed(names, newest) if self._at < 0 else None
        those, is_calm = read_generation(self._folder, self._wants)
        if self._me not in _processes(those):
            self._wants = -1  # One that comes late wants the next one then.
            return None if self._at < 0 and those else _LEFT_BEHIND if those else _ALL_LOST
        self._at, self._members, self._asked = self._wants, _processes(those), None
        self._invite(those, is_calm)
        return None

    def _invite(self, those: Sequence[Here], is_calm: bool) -> None:
        invitation = Invitation(
            [one.rank for one in those].index(self._me[0]),
            [Endpoint(one.address, one.port, one.node) for one in those],
            self._secret,
            self._at,
            join_s=self._plan.start_timeout_s,
            timeout_s=self._plan.collective_timeout_s,
            members=[one.rank for one in those],
            is_calm=is_calm,
        )
        listener, self._listener = self._listener, None
        with contextlib.suppress(BrokenPipeError):  # It has just died.
            invitation.send(self._mine, listener)

    def _missed(self, names: Sequence[str], newest: int) -> str | None:
        """Whether the others have ended before this process could join them."""
        done = {name.partition(".")[0] for name in names if name.endswith(".done")}
        those, lives = read_generation(self._folder, newest)[0], lives_of(names)
        if not those:
            return _ALL_LOST
        if any(str(one.rank) not in done for one in those if lives[one.rank] == one.life):
            return None
        # The chief has what the run returns: without that, all begin again from the checkpoint.
        return COMPLETE if str(those[0].rank) in done else _ALL_LOST

    def _say(self, name: str) -> None:
        if name not in self._said:
            storage.write(storage.join(self._folder, name), b"")
            self._said.add(name)

    def _tell(self, what: str) -> None:
        """Tell the process of something about its ring, once."""
        if f"{what}-{self._at}" not in self._said:
            self._said.add(f"{what}-{self._at}")
            with contextlib.suppress(OSError):
                self._mine.send(json.dumps({"what": what, "generation": self._at}).encode())


def _processes(those: Sequence[Here]) -> set[tuple[int, int]]:
    return {(one.rank, one.life) for one in those}
