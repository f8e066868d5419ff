"""Runs on the driver. The job of a cluster whose nodes go on when their Spark job has ended.

The job starts node supervisors and is over, except for tasks that hold their slot. Each supervisor
leaves the outcome of its node in the run directory, and shows there that it lives.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from sparkdl.cluster.gang.slow_ranks import GangNews
from sparkdl.cluster.gang.task import RankTask, failed_outcome
from sparkdl.cluster.outcome import Outcome, RankInfo, Status
from sparkdl.cluster.plan import Member, Plan
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.cluster.topology import Submit
from sparkdl.files.polling import Outages, poll_s
from sparkdl.files.rank_files import RankFiles
from sparkdl.runs.states import Failure
from sparkdl.tfos.cluster.node_files import ALIVE, END, FEED_OVER, OUTCOME, beat_s, read_outcome

POLL_S = 0.05

# A supervisor that has been silent for this long is gone, with the host of its executor; in a store
# or on a network filesystem it gets longer, see `RankFiles.patience_s`.
SILENCE_TIMEOUT_S = 10.0
# Nodes that are ordered to end get this long.
END_GRACE_S = 5.0
REMOTE_END_GRACE_S = 20.0
# The order to end is written again for this long if the store fails.
ORDER_TIMEOUT_S = 120.0


class DetachedJob:
    """The job of one attempt.

    Args:
        plan: the plan of the cluster.
        files: the files by which the ranks of the attempt talk.
        submit: hands the job to Spark and returns the rows of its tasks.
    """

    def __init__(self, plan: Plan, files: RankFiles, submit: Submit) -> None:
        self._plan = plan
        self._files = files
        self._submit = submit
        self._detached = [member for member in plan.members if member.role.must_return]
        self._outcomes: dict[int, Outcome] = {}
        self._beats: dict[int, tuple[bytes, float]] = {}
        self._end = threading.Event()
        self._end_is_ordered = False
        self._end_is_written = False
        self._secret = b""
        self._poll_s = poll_s(files.url, POLL_S)
        self._beats_poll_s = beat_s(files.url, len(self._detached), 0.0)
        self._beats_read_s = 0.0
        self._silence_s = files.patience_s(SILENCE_TIMEOUT_S)
        self._grace_s = files.patience_s(END_GRACE_S, REMOTE_END_GRACE_S)
        self._outages = Outages("list the messages of the nodes of a cluster")
        self._order_outages = Outages("order the nodes of a cluster to end")

    def end(self) -> None:
        """Order all nodes to end: the thread in `run` writes the order."""
        self._end.set()

    def look(self) -> Sequence[GangNews]:
        """Do nothing: the thread in `run` looks by itself."""
        return ()

    def run(self, task: RankTask, *args: Any, **options: Any) -> list[Any]:
        """Run the job, and wait for all nodes; return a row for each.

        Raises:
            JobFailed: if the job was cancelled, or failed.
        """
        self._secret = task.task.trial.secret
        with ThreadPoolExecutor(1, thread_name_prefix="sparkdl-nodes") as pool:
            launched = pool.submit(self._submit, task, *args, **options)
            try:
                outcomes = self._follow(launched)
            except BaseException:
                self.end()
                self._await_ends(launched)
                raise
        return [{"outcome": outcome.to_json()} for outcome in outcomes]

    def _follow(self, launched: "Future[list[Any]]") -> list[Outcome]:
        while not self._end.wait(self._poll_s):
            is_up = launched.done()
            self._look(is_up, time.monotonic())
            if is_up:
                outcomes = [Outcome.from_json(row["outcome"]) for row in launched.result()]
                outcomes = [o for o in outcomes if o.status is not Status.DETACHED]
                outcomes += self._outcomes.values()
                if self._is_complete(outcomes):
                    return outcomes
        raise JobFailed(JobEnd.CANCELLED, "it was ended")

    def _await_ends(self, launched: "Future[list[Any]]") -> None:
        """Order the end until the order is written; wait for all nodes, for a limited time.

        Nodes that get no order end with the application at the latest.
        """
        begin_s = time.monotonic()
        until, order_until = begin_s + self._grace_s, begin_s + ORDER_TIMEOUT_S
        while (now := time.monotonic()) < (until if self._end_is_written else order_until):
            if not self._end_is_written:
                with self._order_outages.tolerated():
                    self._files.order(END)
                    self._end_is_written = True
            self._look(False, now)
            has_ended = launched.done() and not self._beats.keys() - self._outcomes.keys()
            if has_ended and self._end_is_written:
                return
            time.sleep(self._poll_s)

    def _is_complete(self, outcomes: Sequence[Outcome]) -> bool:
        """Return True if every node has finished and no feeding task can ask for its outcome.

        Nodes may finish while tasks are still feeding rows.
        """
        if any(outcome.status is Status.REFUSED for outcome in outcomes):
            return True
        if len(outcomes) < self._plan.size:
            return False
        return self._end_is_ordered or any(outcome.is_failure for outcome in outcomes)

    def _look(self, is_up: bool, now: float) -> None:
        with self._outages.tolerated():
            listing = self._files.look()
            self._end_is_ordered = listing.has_order(FEED_OVER) or listing.has_order(END)
            for rank in {m.rank for m in self._detached} & listing.ranks(OUTCOME):
                if rank not in self._outcomes:
                    self._outcomes[rank] = read_outcome(self._files, rank, self._secret)
            running = [m for m in self._detached if m.rank not in self._outcomes]
            self._check_alive(running, is_up, now)

    def _check_alive(self, members: Sequence[Member], is_up: bool, now: float) -> None:
        """Give up nodes whose supervisor has fallen silent, and let the others know."""
        if now - self._beats_read_s < self._beats_poll_s:
            return
        self._beats_read_s = now
        for rank, beat in self._files.read_all([m.rank for m in members], ALIVE).items():
            if self._beats.get(rank, (b"", 0.0))[0] != beat:
                self._beats[rank] = (beat, now)
        for member in members:
            if is_up:  # Its task has handed over to the supervisor, so that it was there.
                self._beats.setdefault(member.rank, (b"", now))
            beat, last_s = self._beats.get(member.rank, (b"", now))
            if now - last_s > self._silence_s:
                self._ask(member, beat, now)

    def _ask(self, member: Member, beat: bytes, now: float) -> None:
        """Give up a node, unless messages that no listing has shown yet tell of its life or end."""
        rank = member.rank
        with contextlib.suppress(FileNotFoundError):
            self._outcomes[rank] = read_outcome(self._files, rank, self._secret)
            return
        with contextlib.suppress(FileNotFoundError):
            newest = self._files.read(rank, ALIVE)
            if newest != beat:
                self._beats[rank] = (newest, now)
                return
        self._give_up(member, beat)

    def _give_up(self, member: Member, beat: bytes) -> None:
        host = (beat.decode().split() or ["unknown"])[-1]
        error = (
            f"{Failure.LOST}: it has shown no life for {self._silence_s:g} s; its host may be gone"
        )
        who = RankInfo(rank=member.rank, role=str(member), host=host)
        # If the supervisor wakes, it sees that the gang has failed, and ends.
        self._files.post(member.rank, "failed")
        self._outcomes[member.rank] = replace(failed_outcome(error, Failure.LOST), who=who)
