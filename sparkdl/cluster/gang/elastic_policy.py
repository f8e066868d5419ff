"""Runs in a Spark task. A rank of an elastic gang, whose processes come one after the other.

The rank is in no barrier stage, which Spark would end with the first task that is lost: it is a
task that Spark starts again by itself. The ranks meet by files in the run directory.
"""

import contextlib
import json
import socket
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl.cluster.executor_name import this_executor
from sparkdl.cluster.gang.elastic_seat import (
    ALL_LOST,
    GIVEN_BACK,
    LEFT_BEHIND,
    ElasticSeat,
    post_request,
)
from sparkdl.cluster.gang.membership import (
    JoinRequest,
    generations,
    newest_incarnation,
    read_generation,
)
from sparkdl.cluster.gang.placement import Placement, RingSeat
from sparkdl.cluster.gang.policies import announce
from sparkdl.cluster.gang.rendezvous import Peer
from sparkdl.cluster.gang.supervisor import Supervisor
from sparkdl.cluster.gpus.assignment import AssignedGpus, assigned_gpus, spark_gpus
from sparkdl.cluster.outcome import Outcome, ProcessExit, Status, classify_failure
from sparkdl.cluster.plan import Member
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.files import storage
from sparkdl.files.layout import PER_ATTEMPT, RANKS, metrics_of
from sparkdl.files.rank_files import RankFiles
from sparkdl.host.os_processes import this_node
from sparkdl.runs.states import Failure

if TYPE_CHECKING:
    import pyarrow as pa


# The reason for which a process does not start.
SAME_HOST = "the free slot is on a host whose ranks are slow"


@dataclass(frozen=True)
class ElasticPolicy:
    """A gang that goes on without a rank that is lost, and takes the rank in again."""

    def meet(self, task: TrialTask, member: Member, stack: ExitStack) -> Placement:
        paths, attempt, rank = task.paths, task.trial.attempt, member.rank
        files = RankFiles(paths.ranks(attempt))
        storage.make_directory(files.url)
        mine, listener = _announce(task, member, stack)
        incarnation = _begin(files, mine, rank)
        if not generations(files.look()) and not files.has_numbered("generation", 0):
            if rank == incarnation == 0 and not mine.problem:
                task.supersede(attempt, PER_ATTEMPT - {RANKS})
            request = JoinRequest(
                rank=rank,
                incarnation=incarnation,
                address=mine.address,
                port=mine.ring_port,
                node=mine.node,
                executor=this_executor(),
            )
            post_request(files, 0, request)
        while not generations(files.look()):
            time.sleep(files.poll_s(task.plan.size))
        peers = _first_peers(files, mine, rank)
        return Placement(
            member=member, attempt=attempt, peers=peers, paths=paths, listener=listener
        )

    def run(
        self, task: TrialTask, placement: Placement, batches: "Iterable[pa.RecordBatch]"
    ) -> Outcome | None:
        return None

    def gpus(
        self, task: TrialTask, placement: Placement, supervisor: Supervisor
    ) -> AbstractContextManager[AssignedGpus]:
        from pyspark import TaskContext

        return assigned_gpus(task.plan, task.run.id, spark_gpus(TaskContext.get()))

    def environ(self, task: TrialTask, placement: Placement, gpus: AssignedGpus) -> dict[str, str]:
        return {}  # Groups that frameworks form from such variables do not outlive a lost rank.

    def seat(self, task: TrialTask, placement: Placement, folder: Path) -> RingSeat:
        _copy_earlier_files(placement, folder)
        return ElasticSeat(task.plan, placement, task.trial.secret)

    def restarts(self, task: TrialTask, placement: Placement, end: ProcessExit) -> bool:
        if end.stopped == ALL_LOST:
            raise ConnectionError(ALL_LOST)
        was_killed = (
            end.outcome is None and not end.stopped and classify_failure(end) == Failure.SIGNAL
        )
        if was_killed or end.stopped == LEFT_BEHIND:
            _begin(placement.files, placement.peer, placement.rank, placement.incarnation)
            return True
        return False

    def concluded(self, task: TrialTask, placement: Placement, outcome: Outcome) -> None:
        pass


@dataclass(frozen=True)
class StandbyPolicy(ElasticPolicy):
    """A rank that is started while the gang trains: its process waits until it is in the ring.

    If there is a slow process of the rank, that one trains meanwhile, and ends when the new one
    takes its place.

    Attributes:
        incarnation: the number of the process among those of its rank.
        avoided: the names of the hosts on which ranks are slow, see `this_node`.
    """

    incarnation: int
    avoided: frozenset[str]

    def meet(self, task: TrialTask, member: Member, stack: ExitStack) -> Placement:
        paths, attempt, rank = task.paths, task.trial.attempt, member.rank
        files = RankFiles(paths.ranks(attempt))
        place: dict[str, Any] = {"member": member, "attempt": attempt, "paths": paths}
        place["incarnation"] = self.incarnation
        if files.has_numbered("leaves", rank, self.incarnation):  # It was lost before it has left.
            lost = newest_incarnation(files, rank, self.incarnation)
            files.post_numbered("gone", rank, lost)  # The others need not wait for it.
            return Placement(**place, peers=[])
        was_in = files.has_numbered("began", rank, self.incarnation)  # It was lost since.
        if this_node() in self.avoided and not was_in:
            return Placement(**place, peers=[])
        try:
            mine, listener = _announce(task, member, stack)
            peers = _first_peers(files, mine, rank)
            if was_in:
                _begin(files, mine, rank, self.incarnation)
            else:
                files.post_numbered("moving", rank, self.incarnation, data=mine.host)
        except TimeoutError as late:  # The gang is not late, but this process.
            raise RuntimeError(f"{member} cannot join: {late}") from late
        return Placement(**place, peers=peers, listener=listener)

    def run(
        self, task: TrialTask, placement: Placement, batches: "Iterable[pa.RecordBatch]"
    ) -> Outcome | None:
        if placement.peers:
            return None
        reason = SAME_HOST if this_node() in self.avoided else GIVEN_BACK
        return Outcome(status=Status.STOPPED, error=reason)

    def restarts(self, task: TrialTask, placement: Placement, end: ProcessExit) -> bool:
        return placement.is_member() and super().restarts(task, placement, end)

    def concluded(self, task: TrialTask, placement: Placement, outcome: Outcome) -> None:
        if not placement.is_member():  # It may have asked for a place.
            placement.files.post_numbered("gone", placement.rank, self.incarnation)


def _announce(
    task: TrialTask, member: Member, stack: ExitStack
) -> tuple[Peer, socket.socket | None]:
    """Return this rank as the others know it, and the socket that listens for the ring."""
    mine, port_socket, listener = announce(task, member, [task.run.driver], stack)
    if port_socket:
        port_socket.close()
    return mine, listener


def _first_peers(files: RankFiles, mine: Peer, rank: int) -> list[Peer]:
    """Return the ranks of the first ring, with this rank as it is now."""
    processes = dict(read_generation(files, 0).processes)
    records = {r: files.read_numbered("began", r, processes[r]) for r in processes if r != rank}
    others = {r: Peer(**json.loads(record)) for r, record in records.items()}
    return [peer for _, peer in sorted({**others, rank: mine}.items())]


def _begin(files: RankFiles, mine: Peer, rank: int, least: int = -1) -> int:
    """Post that a process of this rank begins; return its incarnation.

    Args:
        files: the files by which the ranks talk.
        mine: this rank.
        rank: its number.
        least: an incarnation of it that is known.
    """
    incarnation = newest_incarnation(files, rank, least) + 1
    files.post_numbered("began", rank, incarnation, data=json.dumps(asdict(mine)))
    return incarnation


def _copy_earlier_files(placement: Placement, folder: Path) -> None:
    """Copy the log and metrics that an earlier process of this rank wrote on another host.

    The process that follows appends to these files.
    """
    rank, role = placement.rank, placement.member.role.name
    metrics = metrics_of(role, rank, is_chief=rank == 0)
    shared = placement.paths.folder
    for name in (placement.member.log, metrics):
        if not (file := folder / name).exists():
            with contextlib.suppress(FileNotFoundError):
                file.write_bytes(storage.read(storage.join(shared, name)))
