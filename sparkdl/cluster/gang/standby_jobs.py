"""Runs on the driver. Start further processes of an elastic gang, by Spark jobs of one task each.

Such a process imports and builds its model while the others train. When it asks for a place, the
ranks meet between two steps, and `Membership` lets it in: in place of a slow process of its rank,
see `RankMover`, or as one rank more, see `RankGrower`.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from sparkdl.cluster.gang.elastic_policy import StandbyPolicy
from sparkdl.cluster.gang.membership import INCARNATIONS, Membership
from sparkdl.cluster.gang.task import RankTask
from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.distribute.step_times import shown_host
from sparkdl.files.rank_files import RankFiles

# A task that has not begun in this time has found no slot.
BEGIN_S = 60.0
# A job that is cancelled gets this long to end.
END_S = 10.0
CANCEL_S = 0.2

NO_SLOT = "Spark has no spare slot"

# The tag of all further processes of all gangs. Such a process asks for an idle slot: no gang gives
# it one of its own, as two gangs that grow would take the slots from each other in turn.
TAG = "sparkdl:standby"

Submit = Callable[..., list[Any]]


@dataclass(frozen=True, kw_only=True)
class Standby:
    """A further process of a gang: it waits for a place, or has got one.

    Attributes:
        rank: its rank.
        incarnation: the number of the process among those of its rank. The numbers of the
            processes that its task starts after it follow.
        tag: the tag of its job.
        begun_s: the time of the submission, on the monotonic clock.
        rows: the future rows of its job.
    """

    rank: int
    incarnation: int
    tag: str
    begun_s: float
    rows: "Future[list[Any]]" = field(default_factory=Future, repr=False)

    @property
    def reason(self) -> str:
        """The reason for which a process that has ended had not joined the others."""
        if error := self.rows.exception():
            return f"{error}".split("\n")[0]
        outcome = Outcome.from_json(self.rows.result()[0]["outcome"])
        reason = (outcome.error or "").strip().split("\n")[0]
        is_order = outcome.status is Status.STOPPED
        return reason if is_order else f"its new process failed: {reason}"


class StandbyJobs:
    """The jobs of the further processes of one gang.

    Args:
        files: the files by which the ranks of the attempt talk.
        membership: lets the processes in.
        submit: hands a job to Spark and returns the rows of its tasks.
        cancel: ends the jobs with a tag.

    Attributes:
        files, membership: the arguments.
        is_over: the gang has ended.
    """

    def __init__(
        self,
        files: RankFiles,
        membership: Membership,
        submit: Submit,
        cancel: Callable[[str], None],
    ) -> None:
        self.files = files
        self.membership = membership
        self._submit, self._cancel = submit, cancel
        self._job: tuple[RankTask, tuple[Any, ...], dict[str, Any]] | None = None
        self._all: list[Standby] = []
        self._lock = threading.Lock()  # The job of the gang ends in another thread.
        self.is_over = False

    def begin(self, task: RankTask, args: Sequence[Any], options: dict[str, Any]) -> None:
        """Note the job of the gang, by whose arguments further processes are started."""
        self._job = task, tuple(args), options

    @property
    def tag(self) -> str:
        """The tag of all jobs of the gang."""
        return str(self._job[2]["tags"][-1]) if self._job else ""

    def start(self, rank: int, why: str, avoided: frozenset[str] = frozenset()) -> Standby | None:
        """Start a process; return None if the gang has ended, or has not begun.

        Args:
            rank: its rank.
            why: the end of the description of its job.
            avoided: the names of the hosts on which it must not run, see `this_node`.
        """
        if self._job is None:
            return None
        task, args, options = self._job
        number = len(self._all) + 1
        standby = Standby(
            rank=rank,
            incarnation=number * INCARNATIONS,
            tag=f"{options['tags'][-1]}:standby-{number}",
            begun_s=time.monotonic(),
        )
        policy = StandbyPolicy(standby.incarnation, avoided)
        more: dict[str, Any] = {"num_tasks": 1, "rows": None}
        more["tags"] = (*options["tags"], TAG, standby.tag)
        more["description"] = f"{options['description']} rank {rank}, {why}"
        further = replace(task, policy=policy, rank=rank)

        def run() -> None:
            try:
                rows = self._submit(further, *args, **{**options, **more})
            except BaseException as exc:  # noqa: BLE001 The owner of the future gets it.
                standby.rows.set_exception(exc)
            else:
                standby.rows.set_result(rows)

        with self._lock:
            if self.is_over:
                return None
            try:
                threading.Thread(target=run, name=f"sparkdl-standby-{number}", daemon=True).start()
            except RuntimeError:  # The interpreter shuts down.
                return None
            self._all.append(standby)
        return standby

    def has_joined(self, standby: Standby) -> bool:
        """Return True if the others have let the process in, though it may have ended since."""
        moved = self.membership.moved.get(standby.rank)
        return moved is not None and moved.incarnation == standby.incarnation

    def is_late(self, standby: Standby) -> bool:
        """Return True if Spark has had no slot for its task for too long."""
        late = time.monotonic() - standby.begun_s > BEGIN_S
        numbers = standby.rank, standby.incarnation
        return late and not self.files.has_numbered("moving", *numbers)

    def host(self, standby: Standby) -> str:
        """Return the host of a process that has joined the others."""
        text = self.files.read_numbered("moving", standby.rank, standby.incarnation)
        return shown_host(text.decode(errors="replace"))

    def cancel(self, standby: Standby) -> None:
        """End the job of a process."""
        self._cancel(standby.tag)

    def end(self) -> list[Standby]:
        """Start no more; end the processes that have not joined. Return those that have."""
        with self._lock:
            self.is_over = True
        joined = [standby for standby in self._all if self.has_joined(standby)]
        self._end([standby for standby in self._all if standby not in joined])
        return joined

    def end_all(self) -> None:
        """Start no more, and end all processes."""
        self.end()
        self._end(self._all)

    def _end(self, standbys: Sequence[Standby]) -> None:
        """Cancel jobs until they have ended: one may just be on its way to Spark."""
        deadline = time.monotonic() + END_S
        for standby in standbys:
            while not standby.rows.done() and time.monotonic() < deadline:
                self._cancel(standby.tag)
                with contextlib.suppress(Exception):
                    standby.rows.exception(timeout=CANCEL_S)


def rank_of(row: Any) -> int:
    """Return the rank that a row of a job belongs to."""
    who = Outcome.from_json(row["outcome"]).who
    return who.rank if who else 0
