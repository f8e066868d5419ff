"""Slots as Spark Connect shows them, with a session that answers as a server would."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from sparkdl.cluster import spark_slots
from sparkdl.cluster.plan import Plan, Resources, Role
from sparkdl.cluster.slots import check_gang
from sparkdl.cluster.spark_explained import user_of_connect
from sparkdl.cluster.spark_settings import SparkSettings
from sparkdl.cluster.spark_slots import SlotCounter
from sparkdl.errors import PreflightError, SlotsError
from sparkdl.host.os_processes import user_name


class ConnectSession:
    """A session without a SparkContext; whatever would run a job is missing."""

    user_line = "Project [ann AS current_user()#0]"

    def __init__(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self.num_questions = 0

    def sql(self, text: str) -> "ConnectSession":
        assert text.startswith("EXPLAIN ")
        self.num_questions += 1
        self.asks_user = "current_user" in text
        return self

    def collect(self) -> list[tuple[str]]:
        if self.asks_user:
            return [(f"== Physical Plan ==\n*(1) {self.user_line}\n+- Scan OneRowRelation[]\n",)]
        return [(f"*(1) Range (0, 1048576, step=1, splits={self.parallelism})\n",)]


def counter(
    master: str, parallelism: int, conf: Mapping[str, str] | None = None
) -> tuple[SlotCounter, ConnectSession]:
    session: Any = ConnectSession(parallelism)
    return SlotCounter(session, SparkSettings((conf or {}).get, master)), session


@pytest.mark.parametrize(
    ("master", "parallelism", "conf", "count"),
    [
        ("local-cluster[2,1,1024]", 2, {}, 2),
        # The setting says nothing about slots.
        ("local-cluster[1,1,1024]", 8, {"spark.default.parallelism": "8"}, 1),
        # Spark says 2 for a single core.
        ("local-cluster[1,1,1024]", 2, {}, 1),
        ("local[4]", 4, {"spark.task.cpus": "2"}, 2),
        ("local", 2, {}, 1),
        ("yarn", 6, {"spark.executor.instances": "3", "spark.executor.cores": "2"}, 6),
        # Two executors of three have registered.
        ("yarn", 4, {"spark.executor.instances": "3", "spark.executor.cores": "2"}, 4),
        ("spark://host:7077", 12, {}, 12),
        ("spark://host:7077", 12, {"spark.cores.max": "8", "spark.task.cpus": "4"}, 2),
    ],
)
def test_slots_of_spark_connect(
    master: str, parallelism: int, conf: Mapping[str, str], count: int
) -> None:
    slots, _ = counter(master, parallelism, conf)
    assert slots.slots(Resources()).count == count
    assert slots.slots_now(Resources()) == count


def test_slots_of_processes_of_several_cores_are_those_of_all_executors() -> None:
    conf = {"spark.executor.instances": "3", "spark.executor.cores": "4"}
    slots, _ = counter("yarn", 12, conf)
    assert slots.slots(Resources(num_cpus=3)).count == 3
    assert slots.slots(Resources(num_cpus=2)).count == 6
    assert slots.slots(Resources(), override=5).count == 5


def test_gang_that_does_not_fit_is_refused_by_spark_connect() -> None:
    conf = {"spark.default.parallelism": "8"}
    slots, _ = counter("local-cluster[1,1,1024]", 8, conf)
    plan = Plan(kind="allreduce", roles=(Role(name="worker", count=5),), is_gang=True)
    with pytest.raises(SlotsError, match=r"Spark has 1 .*SPARKDL_SLOTS"):
        check_gang(plan, slots.slots(Resources()), conf.get, "local-cluster[1,1,1024]")


def test_gang_that_grows_is_refused_by_spark_connect() -> None:
    one, _ = counter("spark://host:7077", 12)
    roles = (Role(name="worker", count=8, min_count=2),)
    plan = Plan(kind="allreduce", roles=roles, is_gang=True, elastic=True)
    message = r"num_workers=\(2, 8\) needs a Spark that tells which slots are idle"
    with pytest.raises(PreflightError, match=message):
        one.check(plan)
    assert "2 to 8 workers with one slot; an elastic gang of 2 to 8 processes" in str(plan)


def test_running_server_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError("all executors are there")

    monkeypatch.setattr(spark_slots.time, "sleep", sleep)
    for conf in ({}, {"spark.executor.instances": "2", "spark.executor.cores": "1"}):
        master = "yarn" if conf else "local-cluster[2,1,1024]"
        slots, session = counter(master, 2, conf)
        slots.wait_for_executors(2)
        assert session.num_questions <= 3


def test_server_that_shows_nothing_is_named() -> None:
    slots, session = counter("spark://host:7077", 1)
    session.parallelism = "?"  # type: ignore[assignment]
    with pytest.raises(SlotsError, match=re.escape("Set SPARKDL_SLOTS to that number")):
        slots.slots(Resources())


def test_user_of_spark_connect_is_read_without_a_job() -> None:
    session: Any = ConnectSession(2)
    assert user_of_connect(session) == "ann"
    session.user_line = "another form of the plan"
    assert user_of_connect(session) == user_name()


@pytest.mark.parametrize(
    ("size", "num_cpus", "waited_for"), [(3, None, 3), (9, None, 4), (2, 2, 4)]
)
def test_executors_of_a_standalone_cluster_come_one_by_one(
    size: int, num_cpus: int | None, waited_for: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No setting tells how many will come, and four do."""
    slots, session = counter("spark://host:7077", 1)
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        session.parallelism = min(4, 1 + int(clock[0]))

    monkeypatch.setattr(spark_slots.time, "sleep", sleep)
    monkeypatch.setattr(spark_slots.time, "monotonic", lambda: clock[0])
    slots.wait_for_executors(size, num_cpus)
    assert slots.slots(Resources()).count == waited_for
    assert clock[0] < 3 + 1.2 * spark_slots.SETTLED_S


class GpuContext:
    """A context of three executors with 4 cores and 2 GPUs each."""

    num_tasks, num_cores, num_executors = 6, 12, 3


@pytest.mark.parametrize(
    ("resources", "count"),
    [
        (Resources(), 6),
        (Resources(num_gpus=1), 6),
        (Resources(num_gpus=0.5), 12),
        (Resources(num_gpus=2), 3),
        (Resources(num_cpus=4), 3),
        # Spark assigns the GPUs of its default also to processes that ask for cores only.
        (Resources(num_cpus=1), 6),
    ],
)
def test_slots_where_executors_have_more_cores_than_gpus(resources: Resources, count: int) -> None:
    conf = {"spark.executor.resource.gpu.amount": "2", "spark.task.resource.gpu.amount": "1"}
    context: Any = GpuContext()
    session: Any = None
    slots = SlotCounter(session, SparkSettings(conf.get, "spark://a:7077"), context)
    assert (slots.slots(resources).count, slots.slots(resources).cores) == (count, 12)


def test_slots_to_come_are_limited_by_gpus_and_have_all_cores() -> None:
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": "20",
        "spark.executor.cores": "8",
        "spark.executor.resource.gpu.amount": "2",
    }
    session: Any = None
    slots = SlotCounter(session, SparkSettings(conf.get, "spark://a:7077")).slots(
        Resources(num_gpus=1)
    )
    assert (slots.count, slots.cores) == (40, 160)
