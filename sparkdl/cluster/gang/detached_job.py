"""Runs on the driver. The Spark job of a gang whose processes go on when that job has ended.

The job brings up keepers and is over, but for tasks that hold their slot. What came out of each
node then stands in the run directory, see `node`, where each keeper also shows that it lives.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from sparkdl import storage
from sparkdl.cluster.gang.node_supervisor import ALIVE
from sparkdl.cluster.gang.node_task import END, FEED_OVER, NodeTask, read_row
from sparkdl.cluster.outcome import failed, says_failure
from sparkdl.cluster.plan import Member, Plan
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.runs.states import Failure

__all__ = ["KeptJob"]

LOOK_S = 0.05
LOOK_REMOTE_S = 2.0

# A keeper that has shown no life for so long is gone, with its executor's host; a store may be
# slow for a while.
SILENT_S, SILENT_REMOTE_S = 10.0, 60.0
# Those that are ordered to end get so long for it.
ENDING_S, ENDING_REMOTE_S = 5.0, 20.0


class KeptJob:
    """The job of one attempt.

    Args:
        plan: of the gang.
        folder: the URL in which its ranks tell each other how it goes.
        submit: hands the job itself to Spark and returns the rows of its tasks.
    """

    def __init__(self, plan: Plan, folder: str, submit: Callable[..., list[Any]]) -> None:
        self._plan, self._folder, self._submit = plan, folder, submit
        self._kept = [member for member in plan.members if member.role.needed]
        self._rows: dict[int, dict[str, Any]] = {}
        self._beats: dict[int, tuple[bytes, float]] = {}
        self._ended = threading.Event()
        self._is_asked_to_end = False
        self._secret = b""
        local = storage.is_local(folder)
        self._look_s = LOOK_S if local else LOOK_REMOTE_S
        self._silent_s = SILENT_S if local else SILENT_REMOTE_S
        self._ending_s = ENDING_S if local else ENDING_REMOTE_S

    def end(self) -> None:
        """Order all nodes to end."""
        if not self._ended.is_set():
            self._ended.set()
            with contextlib.suppress(OSError):  # They end with the application at the latest.
                storage.write(storage.join(self._folder, END), b"")

    def run(self, task: NodeTask, *args: Any, **job: Any) -> list[Any]:
        """Run the job, and wait for all nodes; return a row for each.

        Raises:
            JobFailed: the job was cancelled, or failed.
        """
        self._secret = task.secret
        with ThreadPoolExecutor(1, thread_name_prefix="sparkdl-nodes") as pool:
            launched = pool.submit(self._submit, task, *args, **job)
            try:
                return self._follow(launched)
            except BaseException:
                self.end()
                self._await_ends()
                raise

    def _follow(self, launched: "Future[list[Any]]") -> list[Any]:
        while not self._ended.wait(self._look_s):
            is_up = launched.done()
            self._look(is_up, time.monotonic())
            if is_up:
                rows = [row for row in launched.result() if not _is_kept(row)]
                if self._is_complete(rows):
                    return [*rows, *self._rows.values()]
        wait([launched], self._ending_s)
        raise JobFailed(JobEnd.CANCELLED, "it was ended")

    def _await_ends(self) -> None:
        """Wait until all keepers that have shown life have ended, or had the time to."""
        until = time.monotonic() + self._ending_s
        while self._beats.keys() - self._rows.keys() and time.monotonic() < until:
            time.sleep(self._look_s)
            self._look(False, time.monotonic())

    def _is_complete(self, rows: list[Any]) -> bool:
        """Whether all nodes have ended, and nobody may ask how any more.

        Nodes that want no more rows may have ended all, and tasks go on feeding them.
        """
        outcomes = [json.loads(row["outcome"]) for row in [*rows, *self._rows.values()]]
        if any("preflight" in outcome for outcome in outcomes):
            return True
        if len(outcomes) < self._plan.size:
            return False
        return self._is_asked_to_end or any(map(says_failure, outcomes))

    def _look(self, is_up: bool, now: float) -> None:
        with contextlib.suppress(OSError):  # The store fails for a moment: the next time.
            names = set(storage.names(self._folder))
            self._is_asked_to_end = FEED_OVER in names or END in names
            for member in self._kept:
                rank = member.rank
                if rank not in self._rows and f"{rank}.row" in names:
                    url = storage.join(self._folder, f"{rank}.row")
                    self._rows[rank] = read_row(url, self._secret)
            self._listen([m for m in self._kept if m.rank not in self._rows], is_up, now)

    def _listen(self, members: list[Member], is_up: bool, now: float) -> None:
        """Give up those that have fallen silent, and let the others know."""
        urls = {storage.join(self._folder, f"{m.rank}{ALIVE}"): m for m in members}
        for url, beat in storage.read_new(dict.fromkeys(urls, 0)).items():
            rank = urls[url].rank
            if self._beats.get(rank, (b"", 0.0))[0] != beat:
                self._beats[rank] = (beat, now)
        for member in members:
            if is_up:  # Its task has handed over to it, so that it was there.
                self._beats.setdefault(member.rank, (b"", now))
            beat, last_s = self._beats.get(member.rank, (b"", now))
            if now - last_s > self._silent_s:
                self._give_up(member, beat)

    def _give_up(self, member: Member, beat: bytes) -> None:
        host = (beat.decode().split() or ["unknown"])[-1]
        who = {"rank": member.rank, "role": str(member), "host": host, "attempt": 0}
        error = (
            f"{Failure.LOST}: it has shown no life for {self._silent_s:g} s; its host may be gone"
        )
        said = {**who, **failed(error, Failure.LOST)}
        self._rows[member.rank] = {"outcome": json.dumps(said), "exception": None}
        # Should it wake, it finds that the gang has failed, and ends.
        storage.write(storage.join(self._folder, f"{member.rank}.failed"), b"")


def _is_kept(row: Any) -> bool:
    outcome = json.loads(row["outcome"])
    return bool(outcome.get("kept")) and not says_failure(outcome)
