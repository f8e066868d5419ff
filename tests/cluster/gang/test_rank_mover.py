"""When a slow rank moves, and when it stays: the rules, without Spark."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.cluster.gang import rank_mover as module
from sparkdl.cluster.gang import standby_jobs
from sparkdl.cluster.gang.elastic_policy import SAME_HOST, ElasticPolicy, StandbyPolicy
from sparkdl.cluster.gang.membership import JoinRequest
from sparkdl.cluster.gang.rank_mover import CHIEF, NO_SLOT, MovedRank, RankMover
from sparkdl.cluster.gang.slow_ranks import SlowRank
from sparkdl.cluster.gang.standby_jobs import TAG, StandbyJobs
from sparkdl.cluster.gang.task import RankTask
from sparkdl.cluster.outcome import Outcome, RankInfo, Status
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.files.rank_files import RankFiles
from tests.helpers.processes import eventually


def slow(rank: int, host: str = "b") -> SlowRank:
    return SlowRank(rank=rank, host=host, node=f"node {host}", wait_s=1.0, step_s=2.0)


def row(rank: int, status: Status = Status.RETURNED, **more: Any) -> dict[str, str]:
    who = RankInfo(rank=rank, role=f"worker {rank}", host="c")
    return {"outcome": Outcome(status=status, who=who, is_chief=rank == 0, **more).to_json()}


class Gang:
    """A gang of three ranks, whose second Spark job the test ends."""

    def __init__(self, folder: Path, num_spare: int = 1) -> None:
        self.files = RankFiles(str(folder))
        self.membership = SimpleNamespace(moved={})
        self.submitted: list[tuple[RankTask, dict[str, Any]]] = []
        self.cancelled: list[str] = []
        self.num_spare = num_spare
        self._ended = threading.Event()
        self._end: Callable[[], Any] = list
        membership: Any = self.membership
        self.jobs = StandbyJobs(self.files, membership, self._submit, self._cancel)
        self.mover = RankMover(self.jobs, lambda: self.num_spare)
        task: Any = None
        options = {"tags": ("run", "run:0"), "num_tasks": 3, "description": "d", "rows": None}
        self.jobs.begin(RankTask(task, ElasticPolicy()), ["schema"], options)

    def _submit(self, task: RankTask, schema: str, **options: Any) -> Any:
        self.submitted.append((task, options))
        self._ended.wait(60)
        self._ended.clear()
        return self._end()

    def _cancel(self, tag: str) -> None:
        self.cancelled.append(tag)
        self.fail(JobFailed(JobEnd.CANCELLED, "cancelled"))

    def end(self, *rows: Any) -> None:
        """End the second job with these rows."""
        self._end = lambda: list(rows)
        self._ended.set()

    def fail(self, error: Exception) -> None:
        def end() -> None:
            raise error

        self._end = end
        self._ended.set()

    def look(self, *ranks: SlowRank) -> list[Any]:
        return self.mover.look(ranks)

    def starts(self, *ranks: SlowRank) -> RankTask:
        count = len(self.submitted)
        assert self.look(*ranks) == []
        assert eventually(lambda: len(self.submitted) > count)
        return self.submitted[-1][0]

    def admit(self, rank: int, incarnation: int, host: str = "c") -> None:
        self.files.post_numbered("moving", rank, incarnation, data=host)
        self.membership.moved[rank] = JoinRequest(
            rank=rank, incarnation=incarnation, address="", port=1, node=""
        )

    def ends_with(self, *ranks: SlowRank) -> list[Any]:
        """Look until the end of the second job was seen."""
        news: list[Any] = []
        assert eventually(lambda: bool(news.extend(self.look(*ranks)) or news))
        return news


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    monkeypatch.setattr(module, "PAUSE_S", 0.0)


def test_slow_rank_moves_once_and_its_new_outcome_counts(tmp_path: Path) -> None:
    gang = Gang(tmp_path)
    task = gang.starts(slow(1))
    policy = task.policy
    assert isinstance(policy, StandbyPolicy)
    assert (task.rank, policy.avoided) == (1, {"node b"})
    options = gang.submitted[0][1]
    tags = ("run", "run:0", TAG, "run:0:standby-1")
    assert (options["num_tasks"], options["tags"]) == (1, tags)
    assert gang.look(slow(1)) == []  # It is on its way.
    gang.admit(1, policy.incarnation)
    assert gang.look(slow(1)) == [MovedRank(rank=1, host="b", target="c")]
    assert gang.look(slow(1, "c")) == []  # No ping-pong.
    gang.end(row(1))
    ended = [row(0), row(1, Status.STOPPED), row(2)]
    statuses = [Outcome.from_json(r["outcome"]).status for r in gang.mover.rows(ended)]
    assert statuses == [Status.RETURNED] * 3
    assert len(gang.submitted) == 1


def test_no_rank_moves_to_a_host_that_is_slow_or_was(tmp_path: Path) -> None:
    gang = Gang(tmp_path)
    first = gang.starts(slow(1), slow(2, "d")).policy
    assert isinstance(first, StandbyPolicy) and first.avoided == {"node b", "node d"}
    gang.admit(1, first.incarnation)
    gang.look()
    second = gang.starts(slow(2, "d")).policy
    assert isinstance(second, StandbyPolicy) and second.avoided == {"node b", "node d"}
    assert second.incarnation > first.incarnation


def test_move_is_told_when_the_store_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = Gang(tmp_path)
    policy = gang.starts(slow(1)).policy
    assert isinstance(policy, StandbyPolicy)
    gang.admit(1, policy.incarnation)
    with monkeypatch.context() as patch:
        patch.setattr(RankFiles, "read_numbered", unreachable)
        with pytest.raises(OSError, match="the store is down"):
            gang.look()
    assert gang.look() == [MovedRank(rank=1, host="b", target="c")]


def unreachable(*_: Any) -> bytes:
    raise OSError("the store is down")


def test_rank_stays_without_a_spare_slot_and_moves_when_there_is_one(tmp_path: Path) -> None:
    gang = Gang(tmp_path, num_spare=0)
    assert gang.look(slow(1)) == [MovedRank(rank=1, host="b", reason=NO_SLOT)]
    assert gang.look(slow(1)) == []  # Told once.
    gang.num_spare = 1
    assert gang.starts(slow(1)).rank == 1


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (row(1, Status.STOPPED, error=SAME_HOST), SAME_HOST),
        (row(1, Status.STOPPED, error="KeyError: 3\n\nTraceback"), "KeyError: 3"),
        (row(1, Status.REFUSED, error="no torch"), "its new process failed: no torch"),
    ],
)
def test_rank_stays_if_its_new_process_does_not_come(
    tmp_path: Path, outcome: Any, reason: str
) -> None:
    gang = Gang(tmp_path)
    told = []
    for _ in range(module.MAX_TRIES):
        gang.starts(slow(1))
        gang.end(outcome)
        eventually(lambda: gang.mover._moving[1].rows.done())  # type: ignore[index]
        told += gang.look(slow(1))
    assert told == [MovedRank(rank=1, host="b", reason=reason)]
    assert gang.look(slow(1)) == []
    assert len(gang.submitted) == module.MAX_TRIES
    ended = [row(0), row(1), row(2)]
    assert gang.mover.rows(ended) == ended


def test_job_that_gets_no_slot_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = Gang(tmp_path)
    gang.starts(slow(1))
    monkeypatch.setattr(standby_jobs, "BEGIN_S", -1.0)
    assert gang.look(slow(1)) == [MovedRank(rank=1, host="b", reason=NO_SLOT)]
    assert gang.cancelled == ["run:0:standby-1"]


def test_process_that_waits_ends_with_the_gang(tmp_path: Path) -> None:
    gang = Gang(tmp_path)
    gang.starts(slow(1))
    ended = [row(0), row(1), row(2)]
    assert gang.mover.rows(ended) == ended
    assert gang.cancelled == ["run:0:standby-1"]


def test_gang_whose_moved_rank_is_lost_completes_if_the_chief_returns(tmp_path: Path) -> None:
    gang = Gang(tmp_path)
    policy = gang.starts(slow(1)).policy
    assert isinstance(policy, StandbyPolicy)
    gang.admit(1, policy.incarnation)
    gang.look()
    gang.fail(JobFailed(JobEnd.LOST, "lost"))
    ended = [row(0), row(1, Status.STOPPED), row(2)]
    assert gang.mover.rows(ended) == ended


def test_gang_whose_moved_chief_is_lost_begins_again(tmp_path: Path) -> None:
    gang = Gang(tmp_path)
    policy = gang.starts(slow(0)).policy
    assert isinstance(policy, StandbyPolicy)
    gang.admit(0, policy.incarnation)
    gang.look()
    gang.fail(JobFailed(JobEnd.LOST, "lost"))
    with pytest.raises(JobFailed, match="lost"):
        gang.mover.rows([row(0, Status.STOPPED), row(1), row(2)])


def test_chief_stays_where_its_metrics_are_in_a_store(tmp_path: Path) -> None:
    gang = Gang(tmp_path)
    gang.jobs.files = RankFiles("memory://ranks")
    assert gang.look(slow(0)) == [MovedRank(rank=0, host="b", reason=CHIEF)]


def test_rows_of_a_job_are_read_as_spark_gives_them() -> None:
    assert standby_jobs.rank_of(row(2)) == 2
    assert json.loads(row(2)["outcome"])["who"]["rank"] == 2
