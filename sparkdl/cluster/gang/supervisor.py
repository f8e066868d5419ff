"""Runs in a Spark task. Report the state of one rank to its gang, and watch the other ranks.

Each rank posts `joining`, `done` or `failed`, and its process id for onlookers; its training
process adds `joining` and `joined` around the constructor of its strategy. A task that is gone
posts nothing: Spark then ends the barrier stage, and all tasks with it.
"""

import time
from collections.abc import Callable, Collection
from pathlib import Path

from sparkdl.cluster.plan import Plan
from sparkdl.cluster.process.training_process import TrainingProcess
from sparkdl.files.polling import Outages
from sparkdl.files.rank_files import Listing, RankFiles

# After another rank has failed, a process gets this long to exit and report its own error.
FOLLOW_UP_GRACE_S = 1.0
# A process that has reported an exception gets this long to exit.
EXIT_GRACE_S = 3.0

# The beginnings of the reasons for which a process is ended.
PEER_FAILED = "another rank failed"
COMPLETE = "the gang is complete"
DEADLINE = "start deadline"


class Supervisor:
    """Watch one rank of a gang, and report its state to the others.

    Args:
        plan: the plan of the gang.
        rank: the rank.
        files: the files by which the ranks talk.
        local: the folder of these files, as the training process of this rank sees it.
        is_member: returns False while another process of this rank trains in the gang.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        files: RankFiles,
        local: Path,
        is_member: Callable[[], bool] = lambda: True,
    ) -> None:
        self._plan = plan
        self._rank = rank
        self._files = files
        self._local = local
        self._is_member = is_member
        self._role = plan.members[rank].role
        self._poll_s = files.poll_s(plan.size)
        self._outages = Outages("list the messages of the ranks")
        self._failed_reports = Outages("tell the other ranks about this one")
        self._looked_s = 0.0
        self._reported_s = 0.0
        self._listing = Listing()
        self._since: dict[str, float] = {}
        self._times: dict[str, float] = {}
        self._posted: set[str] = set()

    def post(self, topic: str) -> float:
        """Report that this rank is `joining`, `done` or `failed`; once.

        Returns:
            The time of the first call for the topic, in seconds since 1970.

        Raises:
            OSError: if the store cannot be reached: the other ranks do not know then.
        """
        since = self._times.setdefault(topic, time.time())
        if topic == "done" and self._mark("joining").exists():
            self.post("joining")  # Before: who is done without it has never joined.
        if topic not in self._posted and self._is_member():
            self._files.post(self._rank, topic)
            self._posted.add(topic)
        return since

    def began(self, pid: int) -> None:
        """Report the start of a process of this rank, the first one or a later one."""
        self._since.clear()
        with self._failed_reports.tolerated():  # Onlookers only read it.
            if self._is_member():
                self._files.post(self._rank, "pid", f"{pid}")

    def watch(self, process: TrainingProcess) -> str | None:
        """Return the reason to end the process now; None to let it go on."""
        if (outcome := process.outcome) and outcome.is_failure:
            self._try_post("failed")
            return "its function raised" if self._elapsed("exit") > EXIT_GRACE_S else None
        if self.peer_failed():
            return PEER_FAILED if self._elapsed("peer") > FOLLOW_UP_GRACE_S else None
        return self._complete() or self._late(process)

    def _try_post(self, topic: str) -> None:
        """Report a topic, or try again at a later call if the store cannot be reached."""
        now = time.monotonic()
        is_due = not self._failed_reports.in_a_row or now - self._reported_s > self._poll_s
        if topic not in self._posted and is_due:
            self._reported_s = now
            with self._failed_reports.tolerated():
                self.post(topic)

    def peer_failed(self) -> bool:
        """Return True if another rank has failed, as of the last look."""
        self._look()
        return bool(self.others_with("failed"))

    def others_with(self, topic: str) -> set[int]:
        """Return the other ranks that have posted a topic, as of the last look."""
        return self._listing.ranks(topic) - {self._rank}

    def _look(self) -> None:
        if time.monotonic() - self._looked_s > self._poll_s:
            self._looked_s = time.monotonic()
            with self._outages.tolerated():
                self._listing = self._files.look()

    def _elapsed(self, event: str) -> float:
        """Return the seconds since the first call for this event."""
        return time.monotonic() - self._since.setdefault(event, time.monotonic())

    def _complete(self) -> str | None:
        if self._plan.ends_by_order or self._role.must_return:
            return None
        required = {m.rank for m in self._plan.members if m.role.must_return}
        if not required <= self.others_with("done"):
            return None
        return COMPLETE if self._elapsed("complete") >= self._role.grace_s else None

    def _late(self, process: TrainingProcess) -> str | None:
        limit_s = self._plan.start_timeout_s
        if not process.started:
            is_late = self._elapsed("start") > limit_s
            return (
                f"{DEADLINE}: its function was not called within {limit_s:g} s" if is_late else None
            )
        if not self._mark("joining").exists() or self._mark("joined").exists():
            self._since.pop("join", None)
            return None
        self._try_post("joining")  # Other hosts may not see the file of this rank's process.
        if not self._plan.elastic and (gone := self._absent(self.others_with("done"))):
            return (
                f"{DEADLINE}: {gone} returned without a call of distribute.strategy() or a "
                "collective, in which this rank waits for it. Every rank must call it"
            )
        if self._elapsed("join") <= limit_s:
            return None
        absent = self._absent()
        others_with = absent or "the other ranks"
        return (
            f"{DEADLINE}: timed out after {limit_s:g} s waiting for {others_with} to call "
            "distribute.strategy() or a collective. Every rank must call it"
        )

    def _mark(self, topic: str) -> Path:
        """Return the file by which the training process marks that it is joining, or has joined."""
        return self._local / f"{self._rank}.{topic}"

    def _absent(self, among: Collection[int] | None = None) -> str:
        """Return the ranks of the same role that have not begun to join.

        Args:
            among: ranks to look at; None for all.
        """
        joining = self.others_with("joining") | {self._rank}
        # A gang that grows has no further ranks at first, and waits for none of them.
        first = self._plan.members[: self._plan.size] if self._plan.grows else self._plan.members
        members = [m for m in first if m.role.name == self._role.name]
        absent = [
            m for m in members if m.rank not in joining and (among is None or m.rank in among)
        ]
        # A listing may lack what a rank has posted: without the store, nobody has surely returned.
        found = absent if among is None else []
        with self._outages.tolerated():
            found = [m for m in absent if not self._files.has_posted(m.rank, "joining")]
        return ", ".join(map(str, found))
