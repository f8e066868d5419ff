"""Where it runs: T. What Spark executes for one rank of a gang, inside a barrier stage.

The ranks meet once, then each task runs its training process with the variables by which it finds
the others. An exception in one rank's function is a value, as in a trial; the other tasks learn of
it from the run directory and end their processes.
"""

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import BarrierTaskContext

from sparkdl import checkpoints, storage
from sparkdl.cluster.assign import assigned_gpus
from sparkdl.cluster.devicelocks import DevicesTakenError
from sparkdl.cluster.ends import End, Failure
from sparkdl.cluster.environ import gang_variables
from sparkdl.cluster.folder import last_reported, local_folder
from sparkdl.cluster.plan import Member
from sparkdl.cluster.preflight import start_of
from sparkdl.cluster.process import warm
from sparkdl.cluster.rendezvous import (
    Peer,
    deadline,
    hold_port,
    listen,
    local_places,
    meet,
    own_address,
)
from sparkdl.cluster.supervise import DEADLINE, Supervisor
from sparkdl.cluster.task import TrialTask, counted, fed, usage_of
from sparkdl.data.feed import Feeder
from sparkdl.distribute.invitation import Endpoint, Invitation
from sparkdl.gpus import visible_devices
from sparkdl.processes import this_node
from sparkdl.runs.layout import RunPaths, TrialPaths

__all__ = ["GangTask"]

# Servers of these take a port that our task goes on holding. Others get it just before they start.
_SHARES_PORT = ("tensorflow", "torch", "jax")

# A served worker is brought back as often as it is lost, but not one that dies at once each time.
SHORT_LIFE_S = 5.0
MOST_SHORT_LIVES = 3


@dataclass(frozen=True)
class _Here:
    """What is known of this rank once all have met; `listener` is for the ring."""

    member: Member
    attempt: int
    peers: Sequence[Peer]
    trial: TrialPaths
    folder: Path
    listener: socket.socket | None

    @property
    def rank(self) -> int:
        return self.member.rank


@dataclass(frozen=True)
class GangTask(TrialTask):
    """Runs one rank of a gang; the attributes are those of `TrialTask`."""

    def _run(self, batches: Iterable[pa.RecordBatch]) -> tuple[dict[str, Any], bytes | None]:
        context = BarrierTaskContext.get()
        member = self.plan.members[context.partitionId()]
        trial = RunPaths(self.run_path).trial(self.number)
        who = {"attempt": self.attempt, "rank": member.rank, "role": str(member)}
        who["host"] = socket.gethostname()
        with contextlib.ExitStack() as stack:
            try:
                with deadline(self.plan.start_timeout_s):
                    mine, held, listener = self._present(context, member, trial, stack)
                    peers = meet(context, mine)
            except TimeoutError as late:
                with contextlib.suppress(OSError):  # Some may have met, and wait for this one.
                    storage.write(trial.told(self.attempt, member.rank, "failed"), b"")
                return {**who, **_failed(f"{DEADLINE}: {late}", Failure.DEADLINE)}, None
            if problems := sorted({peer.problem for peer in peers if peer.problem}):
                return {**who, "preflight": "\n- ".join(problems)}, None
            if held and self.plan.framework not in _SHARES_PORT:
                held.close()
            folder = stack.enter_context(local_folder(trial))
            here = _Here(member, self.attempt, peers, trial, folder, listener)
            feeder = stack.enter_context(self._feeding(batches, here.rank))
            said, exception = self._supervised(context, here, feeder)
        return {**who, **said}, exception

    def _present(
        self,
        context: BarrierTaskContext,
        member: Member,
        trial: TrialPaths,
        stack: contextlib.ExitStack,
    ) -> tuple[Peer, socket.socket | None, socket.socket | None]:
        """What the others are to know of this rank, the port that it holds, where it listens."""
        problem = self._problem(RunPaths(self.run_path))
        host, newest, held, listener = socket.gethostname(), None, None, None
        address, secret = "", secrets.token_hex(32)
        try:
            hosts = [info.address for info in context.getTaskInfos()]
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
            warm(start_of(self.plan, self.program, self.application))  # While the others come.
        if member.rank == 0 and not problem:
            # Before the others know of it and begin to write.
            self._supersede(trial, self.attempt)
            storage.remove(trial.all_ranks)
            storage.make_directory(trial.ranks(self.attempt))
            found = checkpoints.newest(trial.folder)
            newest = found.number if found else None
        port, ring_port = (one.getsockname()[1] if one else 0 for one in (held, listener))
        mine = Peer(address, port, host, this_node(), ring_port, secret, problem, newest)
        return mine, held, listener

    def _supervised(
        self, context: BarrierTaskContext, here: _Here, feeder: Feeder | None
    ) -> tuple[dict[str, Any], bytes | None]:
        told = here.trial.ranks(here.attempt)
        local = Path(TrialPaths(str(here.folder)).ranks(here.attempt))
        local.mkdir(parents=True, exist_ok=True)
        supervisor = Supervisor(self.plan, here.rank, told, local)
        try:
            if here.rank == 0:
                self._begin(here.trial, here.attempt, self._ranks(here))
            with self._devices(context, here, supervisor) as visible:
                end = counted(self._train(here, visible, supervisor, feeder), feeder)
        except (DevicesTakenError, ValueError, OSError) as exc:
            supervisor.tell("failed")
            # What is wrong with this host's devices stays wrong; a server or store may come back.
            kind = Failure.LOST if isinstance(exc, OSError) else Failure.GPU
            kind = Failure.DEADLINE if isinstance(exc, TimeoutError) else kind
            return _failed(f"{type(exc).__name__}: {exc}", kind), None
        return self._conclude(here, end, supervisor), (end.outcome or {}).get("exception")

    def _ranks(self, here: _Here) -> dict[str, Any]:
        """Who makes this attempt, and where."""
        ranks = {
            str(member): {"host": peer.host, "endpoint": peer.endpoint}
            for member, peer in zip(self.plan.members, here.peers, strict=True)
        }
        return {"host": here.peers[0].host, "ranks": ranks}

    def _devices(
        self, context: BarrierTaskContext, here: _Here, supervisor: Supervisor
    ) -> "contextlib.AbstractContextManager[Mapping[str, str]]":
        if here.member.role.hides_gpus:
            return contextlib.nullcontext(visible_devices([], detect=False))
        # Those that use no GPU take no part in sharing them.
        sharing = [m.rank for m in self.plan.members if not m.role.hides_gpus]
        peers = [here.peers[rank] for rank in sharing]
        local = local_places(peers, sharing.index(here.rank))
        return assigned_gpus(self.plan, self.run_id, context, local, supervisor.peer_failed)

    def _train(
        self,
        here: _Here,
        visible: Mapping[str, str],
        supervisor: Supervisor,
        feeder: Feeder | None,
    ) -> End:
        plan, rank, local = self.plan, here.rank, local_places(here.peers, here.rank)
        endpoints = [peer.endpoint for peer in here.peers]
        environ = gang_variables(plan.framework, plan.members, endpoints, rank, local)
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
        while True:
            begun = time.monotonic()
            log = here.member.log
            variables = {**visible, **environ}
            more = {**fed(feeder), **self._invited(here)}
            started = self._process(here.folder, log, variables, who, more, served)
            with started as process:
                supervisor.began(process.pid)
                limit = None if served else plan.trial_timeout_s
                end = process.wait(limit, lambda: supervisor.watch(process))
            short_lives = short_lives + 1 if time.monotonic() - begun < SHORT_LIFE_S else 0
            killed = end.outcome is None and not end.stopped and not end.out_of_memory
            revived = served and here.member.role.name == "worker" and killed
            if not revived or short_lives == MOST_SHORT_LIVES:
                return end

    def _invited(self, here: _Here) -> dict[str, socket.socket]:
        """The channel by which a training process joins the ring, if it is to."""
        if not here.listener:
            return {}
        endpoints = [Endpoint(p.address, p.ring_port, p.node) for p in here.peers]
        invitation = Invitation(
            here.rank,
            [endpoints[rank] for rank in self.plan.ring],
            bytes.fromhex(here.peers[0].secret),
            join_s=self.plan.start_timeout_s,
            timeout_s=self.plan.collective_timeout_s,
        )
        return {"ring": invitation.send(here.listener)}

    def _checkpoint(self, here: _Here) -> str | None:
        number = here.peers[0].checkpoint
        if number is None:
            return self._initial(here.folder)
        return checkpoints.fetch(here.trial.folder, number, str(here.folder))

    def _conclude(self, here: _Here, end: End, supervisor: Supervisor) -> dict[str, Any]:
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
        elif here.rank == 0 and here.attempt == here.trial.num_attempts() - 1:
            storage.write(here.trial.outputs, json.dumps(said.get("outputs", {}), indent=1))
        if here.rank == 0:
            said["reported"] = last_reported(storage.join(str(here.folder), "metrics.jsonl"))
        return {**said, "ended_s": supervisor.told[what]}

    def _kind(self, here: _Here, kind: str, late: bool, end: End) -> str:
        if late:
            return Failure.DEADLINE
        if here.member.role.served and end.outcome is None and kind == Failure.SIGNAL:
            return Failure.LOST  # Not the person's function: a server of ours.
        if kind == Failure.PORT and self.plan.framework in _SHARES_PORT:
            return Failure.EXCEPTION  # A port of theirs: we hold those of the gang.
        return kind


def _failed(error: str, failure: Failure) -> dict[str, Any]:
    """What a rank says that never came to run its function."""
    said = {"error": f"{error}\n", "failure": str(failure), "ended_s": time.time()}
    return {**said, "usage": {}}
