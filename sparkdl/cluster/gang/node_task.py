"""Runs in a Spark task, and in the supervisor of a node. A rank of a TensorFlowOnSpark cluster.

Two things are other than in any gang. The ranks meet by files in the run directory, which is done
in a moment. And where Spark feeds the nodes, those that train are handed over to keepers, see
`keeper`: their tasks return, so that the slots are free for the tasks that feed.

Orders of the driver are files beside those by which ranks tell each other how it goes:
`feed-over`, `over` for who need not return, and `end`.
"""

import base64
import contextlib
import hmac
import json
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import BarrierTaskContext

from sparkdl import storage
from sparkdl.cluster.gang.node_supervisor import Kept, hand_over
from sparkdl.cluster.gang.placement import InRing, Placed
from sparkdl.cluster.gang.rendezvous import Peer, local_places
from sparkdl.cluster.gang.supervisor import COMPLETE, LOOK_REMOTE_S, LOOK_S, Supervisor
from sparkdl.cluster.gang.task import GangTask
from sparkdl.cluster.gpus.assignment import assigned_gpus
from sparkdl.cluster.outcome import End
from sparkdl.cluster.plan import Member
from sparkdl.cluster.process.training_process import Start
from sparkdl.cuda_visibility import visible_devices
from sparkdl.runs.ids_and_seeds import trial_seed
from sparkdl.runs.layout import RunPaths, TrialPaths
from sparkdl.runs.states import Failure

__all__ = ["END", "FEED_OVER", "NODES", "OVER", "NodeTask", "meet", "read_outcome", "read_row"]

# The variable that tells a node of all of them: their `address:port` by name.
NODES = "SPARKDL_NODES"

FEED_OVER, OVER, END = "feed-over", "over", "end"
ENDED = "the cluster was ended"
MEET_LOOK_S = 0.02


class _Assigned:
    """As much of a task's context as tells which GPUs Spark assigned to it."""

    def __init__(self, resources: Any) -> None:
        self._resources = resources

    def resources(self) -> Any:
        return self._resources


@dataclass(frozen=True)
class NodeTask(GangTask):
    """Runs one node; the attributes are those of `TrialTask`, and some more.

    Attributes:
        kept: in a keeper, what it goes on for.
        is_on_driver: the driver runs it, and no task of Spark's.
        driver: the driver's host, as the executors know it.
        secret: by which the ranks of the ring know each other; empty where it could be read.
    """

    kept: Kept | None = None
    driver: str = ""
    secret: bytes = field(default=b"", repr=False)
    is_on_driver: bool = False

    @property
    def start(self) -> Start:
        """How its training processes, and its keeper, are started."""
        start = super().start
        preload = (
            (*start.preload, "sparkdl.cluster.gang.node_supervisor")
            if self.plan.kept
            else start.preload
        )
        # The parent of the driver is no executor, and may live for ever.
        shared = start.shared and not self.is_on_driver
        return replace(start, preload=preload, is_task=self.kept is None, shared=shared)

    @property
    def trial(self) -> TrialPaths:
        """The files of its trial."""
        return RunPaths(self.run_path).trial(self.number)

    def _meet(
        self, member: Member, trial: TrialPaths, stack: contextlib.ExitStack
    ) -> tuple[Sequence[Peer], socket.socket | None, socket.socket | None]:
        context = BarrierTaskContext.get()
        hosts = [info.address for info in context.getTaskInfos()]
        mine, held, listener = self._present(hosts, member, trial, stack)
        return self._met(member.rank, mine), held, listener

    def _met(self, rank: int, mine: Peer) -> list[Peer]:
        folder = self.trial.ranks(self.attempt)
        peers = meet(folder, len(self.plan.members), rank, mine)
        return [replace(peer, secret=self.secret.hex()) for peer in peers]

    def on_driver(self, rank: int) -> tuple[dict[str, Any], bytes | None]:
        """Run a node of this rank on the driver; what came out of it."""
        member = self.plan.members[rank]
        with contextlib.ExitStack() as stack:
            mine, held, _ = self._present([self.driver], member, self.trial, stack)
            peers = self._met(rank, mine)
            here = Placed(member, self.attempt, peers, self.trial, Path(), None, held)
            said, exception = self._go_on(here, ())
        return {**self._who(member), **said}, exception

    def _go_on(
        self, here: Placed, batches: Iterable[pa.RecordBatch]
    ) -> tuple[dict[str, Any], bytes | None]:
        if self.plan.kept and here.member.role.needed:
            hand_over(self, here)
            return {"kept": True, "usage": {}}, None
        return self.leave_row(here, *super()._go_on(here, batches))

    def leave_row(
        self, here: Placed, said: dict[str, Any], exception: bytes | None
    ) -> tuple[dict[str, Any], bytes | None]:
        """Let all know what came out, not the driver alone."""
        kept: dict[str, Any] = {"outcome": {**self._who(here.member), **said}}
        if exception and self.secret:  # Without it none could tell that the exception is ours.
            kept["exception"] = base64.b64encode(exception).decode()
            kept["proof"] = hmac.digest(self.secret, exception, "sha256").hex()
        storage.write(here.trial.told(self.attempt, here.rank, "row"), json.dumps(kept))
        return said, exception

    def in_keeper(self, kept: Kept) -> "NodeTask":
        """The same task, as a keeper goes on with it."""
        return replace(self, kept=kept)

    def supervised(self, here: Placed) -> tuple[dict[str, Any], bytes | None]:
        """Run the node's process to its end, as a keeper does."""
        return self._supervised(here, None)

    def _devices(self, here: Placed, supervisor: Supervisor) -> Any:
        if here.member.role.hides_gpus:
            return contextlib.nullcontext(visible_devices([], detect=False))
        if self.kept is None:
            return super()._devices(here, supervisor)
        sharing = [m.rank for m in self.plan.members if not m.role.hides_gpus]
        local = local_places([here.peers[r] for r in sharing], sharing.index(here.rank))
        assigned: Any = _Assigned(self.kept.resources)
        return assigned_gpus(self.plan, self.run_id, assigned, local, supervisor.peer_failed)

    def _kind(self, here: Placed, kind: str, late: bool, end: End) -> str:
        kind = super()._kind(here, kind, late, end)
        # What was fed cannot be fed again: no other attempt follows.
        return Failure.EXCEPTION if kind == Failure.PORT else kind

    def _environ(self, here: Placed, local: tuple[int, int]) -> dict[str, str]:
        named = zip(self.plan.members, here.peers, strict=True)
        nodes = {f"{m.role.name}:{m.index}": peer.endpoint for m, peer in named}
        return {**super()._environ(here, local), NODES: json.dumps(nodes)}

    def _place_in_ring(self, here: Placed) -> InRing:
        # Without a secret anybody could be in the ring: then nobody is.
        ring = super()._place_in_ring(here) if self.secret else InRing()
        more = {"port": here.held, "inbox": here.inbox}
        ends = {name: end for name, end in more.items() if end}
        # A seed of its own: programs made for unseeded nodes let each draw other numbers.
        return _InCluster({**ring.ends, **ends}, here, self.kept, self.seed)


class _InCluster(InRing):
    """Passes on to a node what the driver orders."""

    def __init__(self, ends: Any, here: Placed, kept: Kept | None, seed: int) -> None:
        super().__init__(ends, {"seed": trial_seed(seed, here.rank)})
        self._here, self._kept, self._is_told = here, kept, False
        self._folder = here.trial.ranks(here.attempt)
        self._look_s = LOOK_S / 2 if storage.is_local(self._folder) else LOOK_REMOTE_S
        self._looked_s = 0.0

    def watch(self) -> str | None:
        if self._kept and self._kept.is_alone:
            raise ConnectionError(f"the executor of {self._here.member} is gone")
        if time.monotonic() - self._looked_s < self._look_s:
            return None
        self._looked_s = time.monotonic()
        with contextlib.suppress(OSError):  # The store fails for a moment: the next time.
            return self._obey(set(storage.names(self._folder)))
        return None

    def _obey(self, orders: set[str]) -> str | None:
        # The driver removes the folder, with what this rank has told there, when all is over.
        if END in orders or f"met-{self._here.rank}" not in orders:
            return ENDED
        if OVER in orders and not self._here.member.role.needed:
            return COMPLETE
        if FEED_OVER in orders and self._kept and self._kept.feed_over and not self._is_told:
            self._is_told = True
            self._kept.feed_over()
        return None


def meet(folder: str, size: int, rank: int, mine: Peer) -> list[Peer]:
    """Tell the other ranks about `mine`; return what all told, by rank.

    Args:
        folder: where they tell each other.
        size: how many they are.
    """
    storage.write(storage.join(folder, f"met-{rank}"), json.dumps(asdict(replace(mine, secret=""))))
    wanted = {f"met-{other}" for other in range(size)}
    while not wanted <= (names := set(storage.names(folder))):
        if END in names or f"met-{rank}" not in names:
            raise ConnectionError(ENDED)
        time.sleep(MEET_LOOK_S if storage.is_local(folder) else LOOK_REMOTE_S)
    told = (storage.read(storage.join(folder, f"met-{other}")) for other in range(size))
    return [Peer(**json.loads(one)) for one in told]


def read_outcome(url: str) -> dict[str, Any]:
    """What came out of a node, from the file that it left."""
    outcome: dict[str, Any] = json.loads(storage.read(url))["outcome"]
    return outcome


def read_row(url: str, secret: bytes) -> dict[str, Any]:
    """The row of a node, as its task would have returned it.

    Args:
        url: the file that the node left.
        secret: the run's; an exception that somebody else has pickled is not in the row.
    """
    kept, exception = json.loads(storage.read(url)), None
    if secret and "exception" in kept:
        pickled = base64.b64decode(kept["exception"])
        proof = hmac.digest(secret, pickled, "sha256").hex()
        exception = pickled if hmac.compare_digest(proof, kept["proof"]) else None
    return {"outcome": json.dumps(kept["outcome"]), "exception": exception}
