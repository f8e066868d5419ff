"""Runs in a Spark task. What Spark executes for one rank of a gang, inside a barrier stage.

The ranks meet once, then each task runs its training process with the variables by which it finds
the others. An exception in one rank's function is a value, as in a trial; the other tasks learn of
it from the run directory and end their processes.
"""

import contextlib
import functools
import json
import secrets
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import BarrierTaskContext, TaskContext

from sparkdl import checkpoints, storage
from sparkdl.cluster.environ import gang_variables
from sparkdl.cluster.gang.placement import InRing, Placed
from sparkdl.cluster.gang.rendezvous import (
    Peer,
    deadline,
    hold_port,
    listen,
    local_places,
    meet,
    own_address,
)
from sparkdl.cluster.gang.supervisor import DEADLINE, Supervisor
from sparkdl.cluster.gpus.assignment import assigned_gpus
from sparkdl.cluster.gpus.locks import DevicesTakenError
from sparkdl.cluster.outcome import End, failed
from sparkdl.cluster.plan import Member
from sparkdl.cluster.process.training_process import TrainingProcess, warm
from sparkdl.cluster.process.trial_folder import last_reported, local_folder
from sparkdl.cluster.trial_task import TrialTask, counted, fed, usage_of
from sparkdl.cuda_visibility import visible_devices
from sparkdl.data.dataframe.sender import RowSender
from sparkdl.distribute.invitation import Endpoint, Invitation, channel
from sparkdl.os_processes import this_node
from sparkdl.runs.layout import RunPaths, TrialPaths
from sparkdl.runs.states import Failure

__all__ = ["GangTask"]

# Servers of these take a port that our task goes on holding. Others get it just before they start.
_SHARES_PORT = ("tensorflow", "torch", "jax")

# A served worker is brought back as often as it is lost, but not one that dies at once each time.
SHORT_LIFE_S = 5.0
MOST_SHORT_LIVES = 3


@dataclass(frozen=True)
class GangTask(TrialTask):
    """Runs one rank of a gang; the attributes are those of `TrialTask`."""

    def _run(self, batches: Iterable[pa.RecordBatch]) -> tuple[dict[str, Any], bytes | None]:
        member = self.plan.members[TaskContext.get().partitionId()]
        trial = RunPaths(self.run_path).trial(self.number)
        who = self._who(member)
        with contextlib.ExitStack() as stack:
            try:
                with deadline(self.plan.start_timeout_s):
                    peers, held, listener = self._meet(member, trial, stack)
            except TimeoutError as late:
                with contextlib.suppress(OSError):  # Some may have met, and wait for this one.
                    storage.write(trial.told(self.attempt, member.rank, "failed"), b"")
                return {**who, **failed(f"{DEADLINE}: {late}", Failure.DEADLINE)}, None
            if problems := sorted({peer.problem for peer in peers if peer.problem}):
                return {**who, "preflight": "\n- ".join(problems)}, None
            here = Placed(member, self.attempt, peers, trial, Path(), listener, held)
            said, exception = self._go_on(here, batches)
        return {**who, **said}, exception

    def _who(self, member: Member) -> dict[str, Any]:
        who = {"attempt": self.attempt, "rank": member.rank, "role": str(member)}
        return {**who, "host": socket.gethostname()}

    def _go_on(
        self, here: Placed, batches: Iterable[pa.RecordBatch]
    ) -> tuple[dict[str, Any], bytes | None]:
        """All have met: run the function, and say what came out."""
        with local_folder(here.trial) as folder, self._feeding(batches, here.rank) as feeder:
            return self._supervised(replace(here, folder=folder), feeder)

    def _meet(
        self, member: Member, trial: TrialPaths, stack: contextlib.ExitStack
    ) -> tuple[Sequence[Peer], socket.socket | None, socket.socket | None]:
        """What all ranks know of each other then; the port of this one, where it listens for
        the ring."""
        context = BarrierTaskContext.get()
        hosts = [info.address for info in context.getTaskInfos()]
        mine, held, listener = self._present(hosts, member, trial, stack)
        if member.rank == 0 and not mine.problem:
            # Before the others know of it and begin to write.
            self._supersede(trial, self.attempt)
            storage.remove(trial.all_ranks)
            storage.make_directory(trial.ranks(self.attempt))
        peers = meet(context, mine)
        if held and self.plan.framework not in _SHARES_PORT:
            held.close()
        return peers, held, listener

    def _present(
        self, hosts: Sequence[str], member: Member, trial: TrialPaths, stack: contextlib.ExitStack
    ) -> tuple[Peer, socket.socket | None, socket.socket | None]:
        """What the others are to know of this rank, the port that it holds, where it listens."""
        problem = self._problem(RunPaths(self.run_path))
        host, newest, held, listener = socket.gethostname(), None, None, None
        address, secret = "", secrets.token_hex(32)
        try:
            address = own_address(self.plan.interface, hosts)
            held = stack.enter_context(hold_port(address))
            if member.rank in self.plan.ring:
                listener = stack.enter_context(listen(address))
        except (OSError, ValueError) as exc:
            problem = problem or (
                f"executor on host {host} cannot hold a port at {address or 'its address'}: {exc}. "
                "Set SPARKDL_INTERFACE to a network interface that all executors have."
            )
        if not problem:
            warm(self.start)  # While the others come.
            found = checkpoints.newest(trial.folder) if member.rank == 0 else None
            newest = found.number if found else None
        port, ring_port = (one.getsockname()[1] if one else 0 for one in (held, listener))
        mine = Peer(address, port, host, this_node(), ring_port, secret, problem, newest)
        return mine, held, listener

    def _supervised(
        self, here: Placed, feeder: RowSender | None
    ) -> tuple[dict[str, Any], bytes | None]:
        told = here.trial.ranks(here.attempt)
        local = Path(TrialPaths(str(here.folder)).ranks(here.attempt))
        local.mkdir(parents=True, exist_ok=True)
        supervisor = Supervisor(self.plan, here.rank, told, local)
        try:
            if here.rank == 0:
                self._begin(here.trial, here.attempt, self._ranks(here))
            with self._devices(here, supervisor) as visible:
                end = counted(self._train(here, visible, supervisor, feeder), feeder)
        except (DevicesTakenError, ValueError, OSError) as exc:
            supervisor.tell("failed")
            # What is wrong with this host's devices stays wrong; a server or store may come back.
            kind = Failure.LOST if isinstance(exc, OSError) else Failure.GPU
            kind = Failure.DEADLINE if isinstance(exc, TimeoutError) else kind
            return failed(f"{type(exc).__name__}: {exc}", kind), None
        return self._conclude(here, end, supervisor), (end.outcome or {}).get("exception")

    def _ranks(self, here: Placed) -> dict[str, Any]:
        """Who makes this attempt, and where."""
        ranks = {
            str(member): {"host": peer.host, "endpoint": peer.endpoint}
            for member, peer in zip(self.plan.members, here.peers, strict=True)
        }
        return {"host": here.peers[0].host, "ranks": ranks}

    def _devices(
        self, here: Placed, supervisor: Supervisor
    ) -> "contextlib.AbstractContextManager[Mapping[str, str]]":
        if here.member.role.hides_gpus:
            return contextlib.nullcontext(visible_devices([], detect=False))
        # Those that use no GPU take no part in sharing them.
        sharing = [m.rank for m in self.plan.members if not m.role.hides_gpus]
        peers = [here.peers[rank] for rank in sharing]
        local = local_places(peers, sharing.index(here.rank))
        context = TaskContext.get()
        return assigned_gpus(self.plan, self.run_id, context, local, supervisor.peer_failed)

    def _train(
        self,
        here: Placed,
        visible: Mapping[str, str],
        supervisor: Supervisor,
        feeder: RowSender | None,
    ) -> End:
        plan, rank, local = self.plan, here.rank, local_places(here.peers, here.rank)
        who = {
            "rank": rank,
            "world_size": plan.world_size,
            "local_rank": local[0],
            "local_world_size": local[1],
            "role": here.member.role.name,
            "index": here.member.index,
            "attempt": here.attempt,
            "checkpoint": self._checkpoint(here),
        }
        served, short_lives = here.member.role.served, 0
        variables = {**visible, **self._environ(here, local)}
        while True:
            begun = time.monotonic()
            place = self._place_in_ring(here)
            more, me = {**fed(feeder), **place.ends}, {**who, **place.who}
            started = self._process(here.folder, here.member.log, variables, me, more, served)
            with place, started as process:
                supervisor.began(process.pid)
                limit = None if served else plan.trial_timeout_s
                watch = functools.partial(_watch, place, supervisor, process)
                end = process.wait(limit, watch)
            short_lives = short_lives + 1 if time.monotonic() - begun < SHORT_LIFE_S else 0
            if short_lives == MOST_SHORT_LIVES or not self._lives_again(here, end):
                return end

    def _environ(self, here: Placed, local: tuple[int, int]) -> dict[str, str]:
        """The variables by which the training processes find each other."""
        endpoints = [peer.endpoint for peer in here.peers]
        return gang_variables(self.plan.framework, self.plan.members, endpoints, here.rank, local)

    def _lives_again(self, here: Placed, end: End) -> bool:
        """Whether the process that has ended is replaced by another one."""
        killed = end.outcome is None and not end.stopped and not end.out_of_memory
        return here.member.role.served and here.member.role.name == "worker" and killed

    def _place_in_ring(self, here: Placed) -> InRing:
        """How the training process joins the ring, if it is to."""
        if not here.listener:
            return InRing()
        endpoints = [Endpoint(p.address, p.ring_port, p.node) for p in here.peers]
        invitation = Invitation(
            here.rank,
            [endpoints[rank] for rank in self.plan.ring],
            bytes.fromhex(here.peers[0].secret),
            join_s=self.plan.start_timeout_s,
            timeout_s=self.plan.collective_timeout_s,
        )
        mine, theirs = channel()
        with mine:
            invitation.send(mine, here.listener)
        return InRing({"ring": theirs})

    def _checkpoint(self, here: Placed) -> str | None:
        number = here.peers[0].checkpoint
        if number is None:
            return self._initial(here.folder)
        return checkpoints.fetch(here.trial.folder, number, str(here.folder))

    def _conclude(self, here: Placed, end: End, supervisor: Supervisor) -> dict[str, Any]:
        """The row of this rank: whether its function returned, failed or was stopped."""
        log = here.member.log
        late = (end.stopped or "").startswith(DEADLINE)
        stopped = end.stopped and end.outcome is None and not late
        if stopped:
            return {"usage": usage_of(end), "stopped": end.stopped}
        what = "failed" if end.is_failure else "done"
        supervisor.tell(what)
        local_log = storage.join(str(here.folder), log)
        said = self._say(end, local_log, storage.join(here.trial.folder, log))
        if "error" in said:
            said["failure"] = str(self._kind(here, said["failure"], late, end))
        elif said.get("is_chief") and here.attempt == here.trial.num_attempts() - 1:
            storage.write(here.trial.outputs, json.dumps(said.get("outputs", {}), indent=1))
        if said.get("is_chief") or here.rank == 0:
            said["reported"] = last_reported(storage.join(str(here.folder), "metrics.jsonl"))
        return {**said, "ended_s": supervisor.told[what]}

    def _kind(self, here: Placed, kind: str, late: bool, end: End) -> str:
        if late:
            return Failure.DEADLINE
        if here.member.role.served and end.outcome is None and kind == Failure.SIGNAL:
            return Failure.LOST  # Not the person's function: a server of ours.
        if kind == Failure.PORT and self.plan.framework in _SHARES_PORT:
            return Failure.EXCEPTION  # A port of theirs: we hold those of the gang.
        return kind


def _watch(place: InRing, supervisor: Supervisor, process: TrainingProcess) -> str | None:
    return place.watch() or supervisor.watch(process)
