"""Where it runs: D. The Spark job of a gang whose processes go on when that job has ended.

The job brings up keepers and is over, but for tasks that hold their slot. What came out of each
node then stands in the run directory, see `node`, where each keeper also shows that it lives.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sparkdl import storage
from sparkdl.cluster.ends import Failure, says_failure
from sparkdl.cluster.jobs import JobEnd, JobFailed
from sparkdl.cluster.keeper import alive
from sparkdl.cluster.node import END, FEED_OVER, read_row
from sparkdl.cluster.plan import Member, Plan

__all__ = ["KeptJob"]

LOOK_S = 0.05
LOOK_REMOTE_S = 2.0

# A keeper that has shown no life for so long is gone, with its executor's host.
SILENT_S = 10.0
# Those that are ordered to end get so long for it.
ENDING_S = 5.0


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
        self._look_s = LOOK_S if storage.is_local(folder) else LOOK_REMOTE_S

    def end(self) -> None:
        """Order all nodes to end."""
        if not self._ended.is_set():
            self._ended.set()
            with contextlib.suppress(OSError):  # They end with the application at the latest.
                storage.write(storage.join(self._folder, END), b"")

    def run(self, *args: Any, **job: Any) -> list[Any]:
        """Run the job, and wait for all nodes; return a row for each.

        Raises:
            JobFailed: the job was cancelled, or failed.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="sparkdl-nodes") as pool:
            launched = pool.submit(self._submit, *args, **job)
            try:
                return self._follow(launched)
            except BaseException:
                self.end()
                raise

    def _follow(self, launched: "Future[list[Any]]") -> list[Any]:
        ended_s: float | None = None
        while True:
            if launched.done():
                rows = [row for row in launched.result() if not _is_kept(row)]
                self._look(time.monotonic())
                if self._is_complete(rows):
                    return [*rows, *self._rows.values()]
            if self._ended.is_set():
                ended_s = ended_s or time.monotonic()
                if launched.done() and self._is_over(ended_s):
                    raise JobFailed(JobEnd.CANCELLED, "it was ended")
            self._ended.wait(self._look_s) if ended_s is None else time.sleep(self._look_s)

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

    def _is_over(self, ended_s: float) -> bool:
        """Whether the keepers have ended too, or had the time to."""
        late = time.monotonic() - ended_s > ENDING_S
        return late or len(self._rows) == len(self._kept)

    def _look(self, now: float) -> None:
        with contextlib.suppress(OSError):  # The store fails for a moment: the next time.
            names = set(storage.names(self._folder))
            self._is_asked_to_end = FEED_OVER in names or END in names
            for member in self._kept:
                rank = member.rank
                if rank not in self._rows and f"{rank}.row" in names:
                    self._rows[rank] = self._row(rank)
            self._listen([m for m in self._kept if m.rank not in self._rows], now)

    def _row(self, rank: int) -> dict[str, Any]:
        outcome, exception = read_row(storage.join(self._folder, f"{rank}.row"))
        return {"outcome": json.dumps(outcome), "exception": exception}

    def _listen(self, members: list[Member], now: float) -> None:
        """Give up those that have fallen silent, and let the others know."""
        urls = {storage.join(self._folder, alive(m.rank)): m for m in members}
        for url, beat in storage.read_new(dict.fromkeys(urls, 0)).items():
            rank = urls[url].rank
            if self._beats.get(rank, (b"", 0.0))[0] != beat:
                self._beats[rank] = (beat, now)
        for member in members:
            _, last_s = self._beats.setdefault(member.rank, (b"", now))
            if now - last_s > SILENT_S:
                self._give_up(member)

    def _give_up(self, member: Member) -> None:
        error = f"{Failure.LOST}: {member} has shown no life for {SILENT_S:g} s; its executor's "
        said = {"rank": member.rank, "role": str(member), "host": "its executor", "attempt": 0}
        said |= {"error": f"{error}host may be gone\n", "failure": str(Failure.LOST)}
        said |= {"ended_s": time.time(), "usage": {}}
        self._rows[member.rank] = {"outcome": json.dumps(said), "exception": None}
        # Should it wake, it finds that the gang has failed, and ends.
        storage.write(storage.join(self._folder, f"{member.rank}.failed"), b"")


def _is_kept(row: Any) -> bool:
    outcome = json.loads(row["outcome"])
    return bool(outcome.get("kept")) and not says_failure(outcome)
