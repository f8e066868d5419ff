"""Runs in a Spark task, and in the supervisor of a node. A node of a TensorFlowOnSpark cluster.

A node differs from other ranks of a gang in two ways. The ranks meet by files in the run directory,
which takes a moment only. And where Spark feeds the nodes, those that train are handed over to node
supervisors: their tasks return, so that their slots are free for the tasks that feed the nodes.
"""

import functools
import json
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from sparkdl.cluster.gang.placement import Placement, RingSeat
from sparkdl.cluster.gang.policies import (
    announce,
    barrier_hosts,
    framework_variables,
    invite_to_ring,
    share_gpus,
)
from sparkdl.cluster.gang.rendezvous import Peer
from sparkdl.cluster.gang.supervisor import COMPLETE, Supervisor
from sparkdl.cluster.gang.task import identified
from sparkdl.cluster.gpus.assignment import AssignedGpus, spark_gpus
from sparkdl.cluster.outcome import Outcome, ProcessExit, Status
from sparkdl.cluster.plan import Member
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.files.polling import Outages, retry
from sparkdl.files.rank_files import Listing, RankFiles
from sparkdl.host.os_processes import process_start
from sparkdl.runs.ids_and_seeds import trial_seed
from sparkdl.tfos.cluster.node_files import END, FEED_OVER, MET, NODES, OVER, post_outcome

ENDED = "the cluster was ended"
MEET_POLL_S = 0.02
ORDERS_POLL_S = 0.1
# A task leaves its outcome for this long; the driver gets the outcome in the row of the task too.
TASK_RETRY_S = 10.0

_logger = logging.getLogger("sparkdl.tfos")


@dataclass(frozen=True)
class Supervision:
    """The knowledge of a node supervisor about the task whose node it supervises.

    Attributes:
        executor: the process id of the executor of the task, and the start time of the executor.
        gpus: the GPUs that Spark assigned to the task; None if it schedules none.
        inbox: the socket on which the node is fed.
        feed_over: tells the node that no more rows come; set once the node listens.
    """

    executor: tuple[int, int]
    gpus: tuple[str, ...] | None
    inbox: Any = None
    feed_over: Callable[[], None] | None = None

    @property
    def executor_is_gone(self) -> bool:
        return process_start(self.executor[0]) != self.executor[1]


def _never() -> bool:
    return False


@dataclass(frozen=True)
class NodePolicy:
    """A node of a cluster.

    Attributes:
        hand_over: hands a node that trains over to a supervisor, so that the node goes on when its
            task has ended; None for nodes that end with their task.
        on_driver: the node runs on the driver, rather than in a Spark task.
        is_ended: returns True when a node of the driver must end; others are ordered to by a file.
        supervision: set in a node supervisor, None in a task.
    """

    hand_over: Callable[[TrialTask, Placement], None] | None = None
    on_driver: bool = False
    is_ended: Callable[[], bool] = _never
    supervision: Supervision | None = None

    def meet(self, task: TrialTask, member: Member, stack: ExitStack) -> Placement:
        hosts = [task.run.driver] if self.on_driver else barrier_hosts()
        mine, port_socket, listener = announce(task, member, hosts, stack)
        files = RankFiles(task.paths.ranks(task.trial.attempt))
        peers = _meet(files, len(task.plan.members), member.rank, mine, self.is_ended)
        return Placement(
            member=member,
            attempt=task.trial.attempt,
            peers=peers,
            paths=task.paths,
            port_socket=port_socket,
            listener=listener,
        )

    def run(
        self, task: TrialTask, placement: Placement, batches: Iterable[pa.RecordBatch]
    ) -> Outcome | None:
        if self.hand_over and placement.member.role.must_return:
            self.hand_over(task, placement)
            return Outcome(status=Status.DETACHED)
        return None

    def gpus(
        self, task: TrialTask, placement: Placement, supervisor: Supervisor
    ) -> AbstractContextManager[AssignedGpus]:
        addresses = self.supervision.gpus if self.supervision else spark_gpus(TaskContext.get())
        return share_gpus(task, placement, supervisor, addresses)

    def environ(self, task: TrialTask, placement: Placement, gpus: AssignedGpus) -> dict[str, str]:
        pairs = zip(task.plan.members, placement.peers, strict=True)
        nodes = {f"{m.role.name}:{m.index}": peer.endpoint for m, peer in pairs}
        return {**framework_variables(task, placement, gpus), NODES: json.dumps(nodes)}

    def seat(self, task: TrialTask, placement: Placement, folder: Path) -> RingSeat:
        # Without a secret any process could join the ring: then there is no ring.
        ring = invite_to_ring(task, placement) if task.trial.secret else {}
        inbox = self.supervision.inbox if self.supervision else None
        sockets = {"port": placement.port_socket, "inbox": inbox}
        open_sockets = {name: sock for name, sock in sockets.items() if sock}
        more = (self.supervision, task.trial.seed, self.is_ended)
        return NodeSeat({**ring, **open_sockets}, placement, *more)

    def restarts(self, task: TrialTask, placement: Placement, end: ProcessExit) -> bool:
        return False

    def concluded(self, task: TrialTask, placement: Placement, outcome: Outcome) -> None:
        outcome = identified(outcome, task, placement.member)
        write = functools.partial(
            post_outcome,
            placement.files,
            placement.rank,
            outcome,
            task.trial.secret,
            task.plan.secrets,
        )
        timeout_s = None if self.supervision else TASK_RETRY_S
        try:
            retry(write, "leave the outcome of a node", timeout_s)
        except OSError as exc:
            # A node supervisor falls silent now, so that the driver gives its node up.
            _logger.error("failed to leave the outcome of %s: %r", placement.member, exc)


class NodeSeat(RingSeat):
    """The seat of a node in the ring; passes the driver's orders on to the node.

    Args:
        sockets: sockets for the node, by the names of fields of its `Context`.
        placement: the rank of the node.
        supervision: set in a node supervisor, None in a task.
        seed: the seed of the run. Each node gets a seed of its own: programs made for unseeded
            nodes expect each node to draw other numbers.
        is_ended: see `NodePolicy`.
    """

    def __init__(
        self,
        sockets: Any,
        placement: Placement,
        supervision: Supervision | None,
        seed: int,
        is_ended: Callable[[], bool],
    ) -> None:
        super().__init__(sockets, {"seed": trial_seed(seed, placement.rank)})
        self._placement = placement
        self._supervision = supervision
        self._feed_is_over = False
        self._is_ended = is_ended
        self._poll_s = placement.files.poll_s(len(placement.peers), ORDERS_POLL_S)
        self._outages = Outages("read the orders for the nodes of a cluster")
        self._looked_s = 0.0

    def watch(self) -> str | None:
        """Return the reason to end the node; None to let it go on."""
        if self._supervision and self._supervision.executor_is_gone:
            raise ConnectionError(f"the executor of {self._placement.member} is gone")
        if self._is_ended():
            return ENDED
        if time.monotonic() - self._looked_s < self._poll_s:
            return None
        self._looked_s = time.monotonic()
        reason = None
        with self._outages.tolerated():
            reason = self._obey(self._placement.files.look())
        return reason

    def _obey(self, listing: Listing) -> str | None:
        if listing.has_order(END) or _is_removed(
            self._placement.files, self._placement.rank, listing
        ):
            return ENDED
        if listing.has_order(OVER) and not self._placement.member.role.must_return:
            return COMPLETE
        feed_over = self._supervision.feed_over if self._supervision else None
        if listing.has_order(FEED_OVER) and feed_over and not self._feed_is_over:
            self._feed_is_over = True
            feed_over()
        return None


def _is_removed(files: RankFiles, rank: int, listing: Listing) -> bool:
    """Return True if the folder was removed, with the message of this node.

    The driver removes the folder when the cluster has ended.
    """
    return (rank,) not in listing.numbered(MET) and not files.has_numbered(MET, rank)


def _meet(
    files: RankFiles, size: int, rank: int, mine: Peer, is_ended: Callable[[], bool]
) -> list[Peer]:
    """Post `mine` for the other ranks; return what all ranks have posted, by rank.

    Args:
        files: the files of the attempt.
        size: the number of ranks.
        rank: this rank.
        mine: what the other ranks must know of this one.
        is_ended: see `NodePolicy`.

    Raises:
        ConnectionError: if the cluster is ended in the meantime.
    """
    files.post_numbered(MET, rank, data=json.dumps(asdict(mine)))
    while len((listing := files.look()).numbered(MET)) < size:
        if is_ended() or listing.has_order(END) or _is_removed(files, rank, listing):
            raise ConnectionError(ENDED)
        time.sleep(files.poll_s(size, MEET_POLL_S))
    records = (files.read_numbered(MET, other) for other in range(size))
    return [Peer(**json.loads(record)) for record in records]
