"""Runs in a Spark task. What one rank's task tells the others of its gang, and learns from them.

Each rank tells by files in `ranks/<attempt>/` of the trial: `<rank>.joining`, `.done`, `.failed`,
and `.pid` for onlookers; its training process adds `.joining` and `.joined` around the constructor
of its strategy.
A task that is gone tells nothing: then Spark ends the barrier stage, and all tasks with it.
"""

import contextlib
import time
from pathlib import Path

from sparkdl import storage
from sparkdl.cluster.outcome import says_failure
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.process.training_process import TrainingProcess

__all__ = ["COMPLETE", "DEADLINE", "PEER_FAILED", "Supervisor", "look_s"]

LOOK_S = 0.2
LOOK_REMOTE_S = 2.0

# What follows another rank's failure gets so long to end by itself, and to say what it saw.
GRACE_S = 1.0
# A process that has said how its function failed gets so long for its exit.
EXIT_S = 3.0
# An evaluator gets so long to look at the last checkpoint when all others have returned.
EVALUATOR_S = 60.0

# How the reasons begin for which a process is ended.
PEER_FAILED = "another rank failed"
COMPLETE = "the gang is complete"
DEADLINE = "start deadline"


def look_s(folder: str) -> float:
    """How often the tasks of a gang look at what the others tell in a folder."""
    return LOOK_S if storage.is_local(folder) else LOOK_REMOTE_S


class Supervisor:
    """Watches one rank of a gang, and tells the others how it goes.

    Args:
        plan, rank: who is in the gang, and who this is.
        folder: the URL in which ranks tell each other.
        local: the same folder as the training process of this rank sees it.
    """

    def __init__(self, plan: Plan, rank: int, folder: str, local: Path) -> None:
        self._plan, self._rank, self._folder, self._local = plan, rank, folder, local
        self._role = plan.members[rank].role
        self._look_s = look_s(folder)
        self._looked_s = 0.0
        self._names: frozenset[str] = frozenset()
        self.told: dict[str, float] = {}  # When, in seconds since 1970.
        self._since: dict[str, float] = {}

    def tell(self, what: str) -> None:
        """Let the others know that this rank is `joining`, `done` or `failed`."""
        if what not in self.told:
            self.told[what] = time.time()
            storage.write(storage.join(self._folder, f"{self._rank}.{what}"), b"")

    def began(self, pid: int) -> None:
        """A process of this rank's has begun, perhaps after another; its id is for onlookers."""
        self._since.clear()
        storage.write(storage.join(self._folder, f"{self._rank}.pid"), f"{pid}")

    def watch(self, process: TrainingProcess) -> str | None:
        """Why to end this process now, None to let it go on."""
        if (outcome := process.outcome) and says_failure(outcome):
            self.tell("failed")
            return "its function raised" if self._for("exit") > EXIT_S else None
        if self.peer_failed():
            return PEER_FAILED if self._for("peer") > GRACE_S else None
        return self._complete() or self._late(process)

    def peer_failed(self) -> bool:
        """Whether another rank has failed, as of a moment ago."""
        self._look()
        return bool(self.others("failed"))

    def others(self, what: str) -> set[int]:
        """The other ranks that have told this, as of the last look."""
        told = {int(n.partition(".")[0]) for n in self._names if n.endswith(f".{what}")}
        return told - {self._rank}

    def _look(self) -> None:
        if time.monotonic() - self._looked_s > self._look_s:
            self._looked_s = time.monotonic()
            with contextlib.suppress(OSError):  # The store fails for a moment: the next time.
                self._names = frozenset(storage.names(self._folder))

    def _for(self, what: str) -> float:
        """Seconds since this was first asked for `what`."""
        return time.monotonic() - self._since.setdefault(what, time.monotonic())

    def _complete(self) -> str | None:
        needed = {m.rank for m in self._plan.members if m.role.needed}
        if self._plan.kind == "tfos":
            return None  # Its driver says when, see `node`.
        if self._role.needed or not needed <= self.others("done"):
            return None
        wait_s = EVALUATOR_S if self._role.name == "evaluator" else 0.0
        return COMPLETE if self._for("complete") >= wait_s else None

    def _late(self, process: TrainingProcess) -> str | None:
        most = self._plan.start_timeout_s
        if not process.started:
            late = self._for("start") > most
            return f"{DEADLINE}: its function was not called within {most:g} s" if late else None
        mine = self._local / f"{self._rank}"
        if not mine.with_suffix(".joining").exists() or mine.with_suffix(".joined").exists():
            self._since.pop("join", None)
            return None
        self.tell("joining")  # The others may not see the file of this rank's process.
        if self._for("join") <= most:
            return None
        absent = self._absent()
        return (
            f"{DEADLINE}: it waited {most:g} s for the other ranks to call distribute.strategy() "
            f"or a collective{f'; {absent} did not' if absent else ''}. Every rank must call it"
        )

    def _absent(self) -> str:
        joining = self.others("joining")
        members = [m for m in self._plan.members if m.role.name == self._role.name]
        there = joining | {self._rank}
        return ", ".join(str(m) for m in members if m.rank not in there)
