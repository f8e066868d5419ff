"""When a gang grows, and when it gives slots back: the rules, without Spark."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.cluster.gang import rank_grower as module
from sparkdl.cluster.gang import standby_jobs
from sparkdl.cluster.gang.elastic_policy import ElasticPolicy, StandbyPolicy
from sparkdl.cluster.gang.membership import JoinRequest
from sparkdl.cluster.gang.rank_grower import (
    BACK,
    GIVEN_UP,
    IDLE,
    WAITING,
    RankGrower,
    ResizedGang,
)
from sparkdl.cluster.gang.slow_ranks import SlowRank
from sparkdl.cluster.gang.standby_jobs import NO_SLOT, Standby, StandbyJobs
from sparkdl.cluster.gang.task import RankTask
from sparkdl.cluster.outcome import Outcome, RankInfo, Status
from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.cluster.topology import ElasticTopology
from sparkdl.files.rank_files import RankFiles
from sparkdl.runs.rank_texts import rank_text
from tests.cluster.gang.test_membership import ask, begin, ranks
from tests.helpers.in_memory_cluster import InMemoryCluster
from tests.helpers.processes import eventually

SLOTS = 8


def row(rank: int, status: Status = Status.RETURNED, **more: Any) -> dict[str, str]:
    who = RankInfo(rank=rank, role=f"worker {rank}", host="c")
    return {"outcome": Outcome(status=status, who=who, is_chief=rank == 0, **more).to_json()}


class Membership:
    """The part of a membership that a grower sees; the test decides who is in the ring."""

    def __init__(self) -> None:
        self.members = {0: 0, 1: 0}
        self.moved: dict[int, JoinRequest] = {}
        self.released: list[int] = []

    def release(self, rank: int, incarnation: int) -> None:
        self.released.append(rank)


class Gang:
    """A gang of 2 to 6 ranks on eight slots, beside tasks of others; the test has the clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, on_demand: bool = False):
        self.now = 1000.0
        for each in (module, standby_jobs):
            monkeypatch.setattr(each, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.membership = Membership()
        self.files = RankFiles(str(folder))
        self.ends: dict[str, tuple[threading.Event, list[Any]]] = {}
        self.others = self.waiting = 0
        membership: Any = self.membership
        self.jobs = StandbyJobs(self.files, membership, self._submit, self._cancel)
        task: Any = None
        options = {"tags": ("run", "run:0"), "num_tasks": 2, "description": "d", "rows": None}
        self.jobs.begin(RankTask(task, ElasticPolicy()), ["schema"], options)
        self.grower = RankGrower(
            self.jobs,
            range(2, 6),
            lambda: SLOTS - self.others - len(self.membership.members),
            lambda: self.waiting,
            on_demand,
        )

    def _submit(self, task: RankTask, schema: str, **options: Any) -> list[Any]:
        assert isinstance(task.policy, StandbyPolicy) and options["num_tasks"] == 1
        assert standby_jobs.TAG in options["tags"]
        end, rows = self.ends.setdefault(options["tags"][-1], (threading.Event(), []))
        end.wait(60)
        if not rows:
            raise JobFailed(JobEnd.CANCELLED, "cancelled")
        return rows

    def _cancel(self, tag: str) -> None:
        self.ends.setdefault(tag, (threading.Event(), []))[0].set()

    def end(self, rank: int, *rows: Any) -> None:
        """End the job of a further rank, without rows by a loss of its executor."""
        standby = self.standbys[rank]
        end, found = self.ends.setdefault(standby.tag, (threading.Event(), []))
        found += rows
        end.set()
        assert eventually(standby.rows.done)

    def look(self, seconds: float = 0.0, slow: tuple[SlowRank, ...] = ()) -> list[Any]:
        """Look several times in this many seconds, and once after them."""
        news: list[Any] = []
        end_s = self.now + seconds
        while self.now < end_s:
            self.now += module.LOOK_S
            news += self.grower.look(slow)
        return news

    @property
    def standbys(self) -> dict[int, Standby]:
        return self.grower._standbys

    def admit(self, *ranks: int) -> None:
        for rank in ranks:
            number = self.standbys[rank].incarnation
            self.membership.members[rank] = number
            self.membership.moved[rank] = JoinRequest(
                rank=rank, incarnation=number, address="", port=1, node=""
            )

    def leave(self, *ranks: int) -> None:
        for rank in ranks:
            del self.membership.members[rank]
            self.end(rank, row(rank, Status.STOPPED))

    def grow(self, *ranks: int) -> None:
        """Grow to these further ranks."""
        self.look(module.IDLE_S + 2 * module.LOOK_S)
        assert set(self.standbys) == set(ranks)
        self.admit(*ranks)
        self.look(module.LOOK_S)


@pytest.fixture
def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Gang(tmp_path, monkeypatch)
    yield made
    for end, _ in made.ends.values():
        end.set()


def sizes(news: list[Any]) -> list[tuple[int, int, str]]:
    return [(each.before, each.after, each.reason) for each in news]


def test_gang_grows_into_slots_that_stay_idle_up_to_its_largest_number(gang: Gang) -> None:
    gang.look(module.IDLE_S)
    assert gang.standbys == {}  # Not idle for long enough.
    gang.look(module.LOOK_S * 2)
    assert set(gang.standbys) == {2, 3, 4, 5}
    gang.look(60)
    assert len(gang.standbys) == 4
    gang.admit(2, 3, 4)
    assert sizes(gang.look(module.LOOK_S)) == [(2, 5, IDLE)]
    gang.admit(5)
    assert sizes(gang.look(module.LOOK_S)) == [(5, 6, IDLE)]
    gang.look(600)
    assert len(gang.standbys) == 4


def test_slot_that_is_idle_between_two_trials_is_left_to_the_search(gang: Gang) -> None:
    gang.others = 6
    for _ in range(20):
        gang.look(module.IDLE_S - module.LOOK_S)
        gang.others = 5
        gang.look(module.LOOK_S)
        gang.others = 6
    assert gang.standbys == {}


def test_as_many_ranks_leave_as_tasks_wait_and_come_back_after_a_pause(gang: Gang) -> None:
    gang.grow(2, 3, 4, 5)
    gang.others = 2
    gang.waiting = 3
    gang.look(module.LOOK_S)
    assert gang.membership.released == []  # Spark may be about to start them.
    gang.look(module.WAITING_S)
    assert gang.membership.released == [5, 4, 3]
    gang.look(60)
    assert gang.membership.released == [5, 4, 3]  # They are on their way.
    gang.leave(5, 4, 3)
    gang.others, gang.waiting = 5, 0
    assert sizes(gang.look(module.LOOK_S)) == [(6, 3, WAITING)]
    gang.others = 0  # The search has ended.
    gang.look(module.LOOK_S)
    assert set(gang.standbys) == {2}
    gang.look(module.PAUSE_S + module.IDLE_S)
    assert set(gang.standbys) == {2, 3, 4, 5}
    first = {rank: standby.incarnation for rank, standby in gang.standbys.items()}
    assert len(set(first.values())) == 4 and first[3] > first[2]


def test_gang_never_gives_back_the_ranks_of_its_own_job(gang: Gang) -> None:
    gang.others, gang.waiting = 6, 50
    gang.look(120)
    assert gang.membership.released == []


def test_barrier_job_that_does_not_fit_gets_all_slots_that_it_lacks(gang: Gang) -> None:
    gang.grow(2, 3, 4, 5)  # Two slots are idle.
    gang.waiting = 4
    gang.look(module.WAITING_S + module.LOOK_S)
    assert gang.membership.released == [5, 4]


def test_work_that_idle_slots_do_not_suit_gets_more_of_them(gang: Gang) -> None:
    gang.grow(2, 3, 4, 5)
    gang.waiting = 1  # A trial with as many CPUs as four slots; two slots are idle.
    gang.look(module.UNSUITED_S)
    assert gang.membership.released == []
    for left in (5, 4):
        gang.look(module.UNSUITED_S + module.WAITING_S + module.LOOK_S)
        assert gang.membership.released[-1] == left
        gang.leave(left)
        gang.look(module.LOOK_S)
    gang.others, gang.waiting = 4, 0
    gang.look(60)
    assert gang.membership.released == [5, 4]


def test_processes_that_are_not_in_yet_go_first_then_slow_ones(gang: Gang) -> None:
    gang.others = 3
    gang.grow(2, 3, 4)
    gang.others = 2
    gang.look(module.IDLE_S + 2 * module.LOOK_S)
    assert 5 in gang.standbys  # It imports.
    slow = SlowRank(rank=3, host="b", node="b", wait_s=1.0, step_s=2.0)
    gang.others, gang.waiting = 3, 2
    gang.look(module.WAITING_S + module.LOOK_S, (slow,))
    assert gang.membership.released == [5, 3]
    assert eventually(gang.standbys[5].rows.done)  # Its job was cancelled.
    assert not gang.standbys[3].rows.done()
    assert gang.look(module.LOOK_S) == []


def test_no_rank_leaves_while_the_ranks_of_the_own_job_are_lost(gang: Gang) -> None:
    gang.grow(2, 3, 4, 5)
    del gang.membership.members[0], gang.membership.members[1]
    assert sizes(gang.look(module.LOOK_S)) == [(6, 4, "workers 0, 1 were lost")]
    gang.waiting = 10
    gang.look(60)
    assert gang.membership.released == []
    gang.membership.members[0] = 1
    assert sizes(gang.look(module.LOOK_S)) == [(4, 5, BACK)]


def test_lost_further_rank_ends_nothing_and_another_one_comes(gang: Gang) -> None:
    gang.grow(2, 3, 4, 5)
    gang.end(4)
    del gang.membership.members[4]
    assert sizes(gang.look(module.LOOK_S)) == [(6, 5, "worker 4 was lost")]
    gang.look(module.IDLE_S + 2 * module.LOOK_S)
    gang.admit(4)
    assert sizes(gang.look(module.LOOK_S)) == [(5, 6, IDLE)]
    for rank in (2, 3, 4, 5):
        gang.end(rank, row(rank))
    rows = gang.grower.rows([row(0), row(1)])
    assert [standby_jobs.rank_of(each) for each in rows] == [0, 1, 2, 3, 4, 5]


def test_failures_of_new_processes_are_told_once_and_end_the_growth(gang: Gang) -> None:
    gang.others = 5
    news: list[Any] = []
    for _ in range(module.MAX_FAILURES):
        while not gang.standbys:
            gang.look(module.LOOK_S)
        gang.end(2, row(2, Status.REFUSED, error="no torch"))
        news += gang.look(module.LOOK_S)
    assert sizes(news) == [(2, 2, "its new process failed: no torch"), (2, 2, GIVEN_UP)]
    text = rank_text(news[0].event(0, []))
    assert text == "the gang stays at 2 workers: its new process failed: no torch"
    gang.look(2 * module.MAX_PAUSE_S)
    assert gang.standbys == {}
    assert gang.grower.rows([row(0), row(1)]) == [row(0), row(1)]


def test_processes_that_fail_together_count_once_and_not_after_others_have_joined(
    gang: Gang,
) -> None:
    for _ in range(2 * module.MAX_FAILURES):
        gang.look(module.PAUSE_S + module.IDLE_S + module.LOOK_S)  # No longer pause than once.
        assert set(gang.standbys) == {2, 3, 4, 5}
        gang.admit(5)
        gang.look(module.LOOK_S)
        for rank in (2, 3, 4):  # They were on one host, which is lost.
            gang.end(rank)
        assert GIVEN_UP not in [reason for *_, reason in sizes(gang.look(module.LOOK_S))]
        del gang.membership.members[5]
        gang.end(5)
        gang.look(module.LOOK_S)


def test_job_that_gets_no_slot_is_cancelled_and_tried_again_later(gang: Gang) -> None:
    gang.others = 5
    gang.look(module.IDLE_S + 2 * module.LOOK_S)
    gang.others = 6  # Another application of the queue was faster.
    assert sizes(gang.look(standby_jobs.BEGIN_S + module.LOOK_S)) == [(2, 2, NO_SLOT)]
    assert eventually(gang.standbys[2].rows.done)
    gang.look(module.LOOK_S)
    gang.others = 5
    gang.look(module.PAUSE_S + module.IDLE_S + module.LOOK_S)
    assert set(gang.standbys) == {2}


def test_work_waits_longer_where_spark_adds_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = Gang(tmp_path, monkeypatch, on_demand=True)
    gang.others = 2
    gang.grow(2, 3, 4, 5)
    gang.waiting = 1
    gang.look(module.ON_DEMAND_WAITING_S - module.LOOK_S)
    assert gang.membership.released == []
    gang.look(2 * module.LOOK_S)
    assert gang.membership.released == [5]
    for rank in (2, 3, 4, 5):
        gang.end(rank, row(rank))


def test_processes_that_wait_end_with_the_gang_and_none_comes_after_it(gang: Gang) -> None:
    gang.look(module.IDLE_S + 2 * module.LOOK_S)
    standbys = list(gang.standbys.values())
    assert gang.grower.rows([row(0), row(1)]) == [row(0), row(1)]
    assert all(standby.rows.done() for standby in standbys)
    assert gang.jobs.start(2, "too late") is None


def test_all_processes_end_if_the_gang_fails(gang: Gang) -> None:
    gang.grow(2, 3, 4, 5)
    standbys = list(gang.standbys.values())
    gang.jobs.end_all()
    assert all(standby.rows.done() for standby in standbys)


def test_sizes_are_shown_as_sentences() -> None:
    news = ResizedGang(before=2, after=4, reason=IDLE)
    assert rank_text(news.event(0, [])) == "2 -> 4 workers: slots were idle"


def elastic_plan() -> Plan:
    return Plan(
        kind="allreduce",
        roles=(Role(name="worker", count=3, min_count=1, in_ring=True),),
        is_gang=True,
        elastic=True,
    )


def test_further_ranks_of_other_gangs_are_no_work_for_which_ranks_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(InMemoryCluster):
        tags: tuple[str, ...] = ()

        def num_waiting(self, *tags: str) -> int:
            self.tags = tags
            return 0

    files, cluster = RankFiles(str(tmp_path)), Asked()
    job = ElasticTopology().job(elastic_plan(), files, cluster)
    begin(files, 0, 0)
    ask(files, 0, 0, 0)
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    job.look()
    assert standby_jobs.TAG in cluster.tags


def test_spark_that_has_ended_does_not_end_the_loop_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndedCluster(InMemoryCluster):
        def num_spare(self, resources: Any, num_used: int) -> int:
            raise AttributeError("'NoneType' object has no attribute 'sc'")

        def num_waiting(self, *tags: str) -> int:
            raise ConnectionRefusedError("Java has gone")

    files = RankFiles(str(tmp_path))
    job = ElasticTopology().job(elastic_plan(), files, EndedCluster())
    begin(files, 0, 0)
    ask(files, 0, 0, 0)
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    assert [*job.look(), *job.look()] == []
    assert ranks(files, 0) == [0]
