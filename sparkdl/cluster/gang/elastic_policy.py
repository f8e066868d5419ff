"""Runs in a Spark task. A rank of an elastic gang, whose processes come one after the other.

The rank is in no barrier stage, which Spark would end with the first task that is lost: it is a
task that Spark starts again by itself. The ranks meet by files in the run directory.
"""

import contextlib
import json
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdl.cluster.executor_name import this_executor
from sparkdl.cluster.gang.elastic_seat import ALL_LOST, LEFT_BEHIND, ElasticSeat, post_request
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
from sparkdl.cluster.outcome import Outcome, ProcessExit, classify_failure
from sparkdl.cluster.plan import Member
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.files import storage
from sparkdl.files.layout import PER_ATTEMPT, RANKS, metrics_of
from sparkdl.files.rank_files import RankFiles
from sparkdl.runs.states import Failure

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ElasticPolicy:
    """A gang that goes on without a rank that is lost, and takes the rank in again."""

    def meet(self, task: TrialTask, member: Member, stack: ExitStack) -> Placement:
        paths, attempt, rank = task.paths, task.trial.attempt, member.rank
        files = RankFiles(paths.ranks(attempt))
        storage.make_directory(files.url)
        mine, port_socket, listener = announce(task, member, [task.run.driver], stack)
        if port_socket:
            port_socket.close()
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
        processes = dict(read_generation(files, 0).processes) | {rank: incarnation}
        records = [files.read_numbered("began", r, processes[r]) for r in sorted(processes)]
        peers = [Peer(**json.loads(record)) for record in records]
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
            _begin(placement.files, placement.peers[placement.rank], placement.rank)
            return True
        return False

    def concluded(self, task: TrialTask, placement: Placement, outcome: Outcome) -> None:
        pass


def _begin(files: RankFiles, mine: Peer, rank: int) -> int:
    """Post that a process of this rank begins; return its incarnation."""
    incarnation = newest_incarnation(files, rank) + 1
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
