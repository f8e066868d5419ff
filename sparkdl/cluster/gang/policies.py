"""Runs in a Spark task. The differences between kinds of ranks, as small policies.

`gang.task.run_rank` runs every rank. A policy decides how the ranks meet, which GPUs and variables
a training process gets, how it joins the ring, and whether it is started again after its end. The
policy of this module is that of a gang in a barrier stage; `elastic_policy` has another one.
"""

import contextlib
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sparkdl import checkpoints
from sparkdl.cluster.environ import gang_variables, horovod_variables, interface_variables
from sparkdl.cluster.gang.meeting import meet
from sparkdl.cluster.gang.placement import Placement, RingSeat
from sparkdl.cluster.gang.rendezvous import (
    Peer,
    hold_port,
    interface_of,
    listen,
    local_places,
    own_address,
)
from sparkdl.cluster.gang.supervisor import Supervisor
from sparkdl.cluster.gpus.assignment import AssignedGpus, assigned_gpus, no_gpus, spark_gpus
from sparkdl.cluster.outcome import Outcome, ProcessExit
from sparkdl.cluster.plan import Member
from sparkdl.cluster.process.server_connection import warm
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.distribute.invitation import Endpoint, Invitation, channel
from sparkdl.files import storage
from sparkdl.files.polling import retry
from sparkdl.files.rank_files import RankFiles
from sparkdl.host.os_processes import this_node

if TYPE_CHECKING:
    import pyarrow as pa

# The servers of these frameworks can listen on a port that the task goes on holding. For others
# the task releases the port just before they start.
SHARES_PORT = ("tensorflow", "torch", "jax")


class RankPolicy(Protocol):
    """The decisions that differ between kinds of ranks."""

    def meet(self, task: TrialTask, member: Member, stack: ExitStack) -> Placement:
        """Meet the other ranks; sockets that the rank holds are entered into `stack`."""
        ...

    def run(
        self, task: TrialTask, placement: Placement, batches: "Iterable[pa.RecordBatch]"
    ) -> Outcome | None:
        """Run the rank in a way of its own, or return None to start its training process."""
        ...

    def gpus(
        self, task: TrialTask, placement: Placement, supervisor: Supervisor
    ) -> AbstractContextManager[AssignedGpus]:
        """Reserve the GPUs of the training process."""
        ...

    def environ(self, task: TrialTask, placement: Placement, gpus: AssignedGpus) -> dict[str, str]:
        """Return the variables by which the training processes find each other."""
        ...

    def seat(self, task: TrialTask, placement: Placement, folder: Path) -> RingSeat:
        """Return the seat of the next training process in the ring."""
        ...

    def restarts(self, task: TrialTask, placement: Placement, end: ProcessExit) -> bool:
        """Return True if the process that has ended is replaced by another one."""
        ...

    def concluded(self, task: TrialTask, placement: Placement, outcome: Outcome) -> None:
        """React to the outcome of the rank."""
        ...


@dataclass(frozen=True)
class BarrierPolicy:
    """A gang in a barrier stage: all ranks start together, and end together when one is lost."""

    def meet(self, task: TrialTask, member: Member, stack: ExitStack) -> Placement:
        from pyspark import BarrierTaskContext

        mine, port_socket, listener = announce(task, member, barrier_hosts(), stack)
        paths, attempt = task.paths, task.trial.attempt
        if member.rank == 0 and not mine.problem:
            # Before the other ranks learn of this attempt and begin to write.
            task.supersede(attempt)
            storage.remove(paths.all_ranks)
            folder = paths.ranks(attempt)
            retry(lambda: storage.make_directory(folder), "make the folder of the ranks")
        members, files = task.plan.members, RankFiles(paths.ranks(attempt))
        secret = task.trial.secret
        peers = meet(BarrierTaskContext.get(), mine, member.rank, members, files, secret)
        if port_socket and task.plan.framework not in SHARES_PORT:
            port_socket.close()
        return Placement(
            member=member,
            attempt=attempt,
            peers=peers,
            paths=paths,
            port_socket=port_socket,
            listener=listener,
        )

    def run(
        self, task: TrialTask, placement: Placement, batches: "Iterable[pa.RecordBatch]"
    ) -> Outcome | None:
        return None

    def gpus(
        self, task: TrialTask, placement: Placement, supervisor: Supervisor
    ) -> AbstractContextManager[AssignedGpus]:
        from pyspark import TaskContext

        return share_gpus(task, placement, supervisor, spark_gpus(TaskContext.get()))

    def environ(self, task: TrialTask, placement: Placement, gpus: AssignedGpus) -> dict[str, str]:
        return framework_variables(task, placement, gpus)

    def seat(self, task: TrialTask, placement: Placement, folder: Path) -> RingSeat:
        return RingSeat(invite_to_ring(task, placement))

    def restarts(self, task: TrialTask, placement: Placement, end: ProcessExit) -> bool:
        role = placement.member.role
        killed = end.outcome is None and not end.stopped and not end.out_of_memory
        return role.runs_server and role.name == "worker" and killed

    def concluded(self, task: TrialTask, placement: Placement, outcome: Outcome) -> None:
        pass


def barrier_hosts() -> list[str]:
    """Return the hosts of all tasks of this barrier stage, as Spark knows them."""
    from pyspark import BarrierTaskContext

    return [info.address for info in BarrierTaskContext.get().getTaskInfos()]


def announce(
    task: TrialTask, member: Member, hosts: Sequence[str], stack: ExitStack
) -> tuple[Peer, socket.socket | None, socket.socket | None]:
    """Prepare a rank for the meeting.

    Args:
        task: the task of the rank.
        member: the rank and its role.
        hosts: hosts that the rank must reach.
        stack: closes the sockets at the end of the rank.

    Returns:
        What the other ranks must know of this one, the socket that holds its port, and the socket
        that listens for the ring.
    """
    plan = task.plan
    problem = task.check()
    host = socket.gethostname()
    newest, port_socket, listener, address = None, None, None, ""
    try:
        address = own_address(plan.interface, hosts)
        port_socket = stack.enter_context(hold_port(address))
        if member.rank in plan.ring:
            listener = stack.enter_context(listen(address))
    except (OSError, ValueError) as exc:
        problem = problem or (
            f"executor on host {host} cannot hold a port at {address or 'its address'}: {exc}. "
            "Set SPARKDL_INTERFACE to a network interface that all executors have."
        )
    if not problem:
        warm(task.start)  # The imports begin while other ranks are still coming.
        latest = checkpoints.newest(task.paths.folder) if member.rank == 0 else None
        newest = latest.number if latest else None
    mine = Peer(
        address=address,
        port=port_socket.getsockname()[1] if port_socket else 0,
        host=host,
        node=this_node(),
        ring_port=listener.getsockname()[1] if listener else 0,
        problem=problem,
        checkpoint=newest,
    )
    return mine, port_socket, listener


def share_gpus(
    task: TrialTask, placement: Placement, supervisor: Supervisor, addresses: Sequence[str] | None
) -> AbstractContextManager[AssignedGpus]:
    """Reserve this rank's share of the GPUs of its host.

    Args:
        task: the task of the rank.
        placement: the rank.
        supervisor: tells when another rank has failed, so that waiting is pointless.
        addresses: the GPUs that Spark assigned; None if Spark schedules none.
    """
    if placement.member.role.hides_gpus:
        return no_gpus()
    sharing = [m.rank for m in task.plan.members if not m.role.hides_gpus]
    peers = [placement.peers[rank] for rank in sharing]
    local = local_places(peers, sharing.index(placement.rank))
    return assigned_gpus(task.plan, task.run.id, addresses, local, supervisor.peer_failed)


def framework_variables(
    task: TrialTask, placement: Placement, gpus: AssignedGpus
) -> dict[str, str]:
    """Return the variables by which the processes of a framework find each other."""
    plan, peers, rank = task.plan, placement.peers, placement.rank
    endpoints = [peer.endpoint for peer in peers]
    variables = gang_variables(plan.members, endpoints, rank, task.run.id, placement.attempt)
    interface = interface_of(peers[rank].address)
    of_interface = interface_variables(interface, is_chosen=plan.interface is not None)
    user_variables = {**os.environ, **plan.env}
    variables |= {name: value for name, value in of_interface.items() if name not in user_variables}
    if placement.member.role.has_horovod_variables:
        # A rank that sees its own GPUs only is alone on its host: `gpus[hvd.local_rank()]`.
        nodes = [f"{number}" if gpus.are_own else peer.node for number, peer in enumerate(peers)]
        local = (0, 1) if gpus.are_own else local_places(peers, rank)
        variables |= horovod_variables(nodes, rank, local)
    return variables


def invite_to_ring(task: TrialTask, placement: Placement) -> dict[str, socket.socket]:
    """Return the socket by which a training process joins the ring; empty outside the ring."""
    if not placement.listener:
        return {}
    endpoints = [Endpoint(p.address, p.ring_port, p.node) for p in placement.peers]
    invitation = Invitation(
        placement.rank,
        [endpoints[rank] for rank in task.plan.ring],
        task.trial.secret,
        join_s=task.plan.start_timeout_s,
        timeout_s=task.plan.collective_timeout_s,
    )
    mine, theirs = channel()
    with contextlib.closing(mine):
        invitation.send(mine, placement.listener)
    return {"ring": theirs}
