"""Jobs of Spark: their labels, their errors, and the files that they leave."""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.plan import Plan, Resources, Role
from sparkdl.cluster.program.packaging import Program
from sparkdl.cluster.slots import Slots
from sparkdl.cluster.spark import MAX_DESCRIPTION, SparkCluster, active_session, num_slots
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.cluster.spark_explained import default_parallelism
from sparkdl.errors import FunctionError, PreflightError
from tests.helpers.processes import eventually
from tests.helpers.runs import quiet

PLAN = Plan(kind="launch", roles=(Role(name="worker", count=1),))


def ones(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"number": pa.array([1] * len(batch), "int64")})


def submit(cluster: SparkCluster, description: str = "a job") -> list[Any]:
    return cluster.submit(
        ones, "number long", resources=Resources(), description=description, tags=("ours",)
    )


@pytest.mark.slow
def test_the_session_is_that_of_all_threads(spark: SparkSession) -> None:
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(active_session()))
    thread.start()
    thread.join()
    assert seen == [spark]
    assert active_session() is spark


class BrokenContext:
    """A context whose connection to Java is gone."""

    master = "yarn"

    def __init__(self) -> None:
        self.is_broken = False
        self._conf = self

    def getAll(self) -> list[tuple[str, str]]:
        return [("spark.speculation", "true")]

    def getLocalProperty(self, key: str) -> str | None:
        if self.is_broken:
            raise OSError(24, "Too many open files")
        return None


class BrokenSession:
    version = pyspark.__version__

    def __init__(self) -> None:
        self._sc = BrokenContext()


def test_whatever_fails_while_a_job_is_submitted_is_the_end_of_the_job() -> None:
    session: Any = BrokenSession()
    cluster = SparkCluster(session)
    session._sc.is_broken = True
    with pytest.raises(JobFailed, match="Too many open files") as failed:
        submit(cluster)
    assert failed.value.end is JobEnd.ERROR


def test_speculation_is_refused_where_it_copies_the_processes_of_a_plan() -> None:
    session: Any = BrokenSession()
    cluster = SparkCluster(session)
    gang: dict[str, Any] = {"roles": PLAN.roles, "is_gang": True}
    cluster.check(PLAN)
    cluster.check(Plan(kind="allreduce", **gang))
    with pytest.raises(PreflightError, match=r"slow ranks of an elastic gang.*=false"):
        cluster.check(Plan(kind="allreduce", elastic=True, **gang))
    cluster._conf["spark.speculation.task.duration.threshold"] = "30min"
    with pytest.raises(PreflightError, match=r"threshold is 30min.*spark.speculation=false"):
        cluster.check(PLAN)


class Connect:
    """A session of Spark Connect with one setting."""

    version = pyspark.__version__

    class conf:
        @staticmethod
        def get(key: str, default: Any) -> Any:
            return "hdfs://name:8020/" if key == "spark.hadoop.fs.defaultFS" else default

    @staticmethod
    def getTags() -> set[str]:
        return set()

    def sql(self, text: str) -> Any:
        assert text == "EXPLAIN SELECT current_user()"
        return self

    def collect(self) -> list[tuple[str]]:
        return [("*(1) Project [ann AS current_user()#0]",)]


def test_default_root_of_spark_connect_is_on_the_filesystem_of_its_settings() -> None:
    session: Any = Connect()
    assert SparkCluster(session).root() == "hdfs://name:8020/user/ann/sparkdl"


class OldConnect(Connect):
    """A client of Spark Connect 3.5, whose stages all have the same resources."""

    __module__ = "pyspark.sql.connect.session"

    def range(self, end: int) -> Any:
        return self

    def mapInArrow(self, func: Any, schema: Any, barrier: bool = False) -> Any: ...


def test_resources_that_spark_connect_gives_no_stage_are_refused() -> None:
    session: Any = OldConnect()
    cluster = SparkCluster(session)
    cluster.check(PLAN)
    roles = (Role(name="worker", count=1, resources=Resources(num_cpus=2)),)
    with pytest.raises(PreflightError, match=r"2 CPUs were requested .*cpus=1.* from Spark 4.0 on"):
        cluster.check(Plan(kind="launch", roles=roles))


def test_packages_that_a_client_lacks_are_named_with_their_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lacking:
        @staticmethod
        def getActiveSession() -> None:
            raise ImportError("zstandard >= 0.25.0 must be installed; however, it was not found.")

    monkeypatch.setattr("pyspark.sql.SparkSession", Lacking)
    with pytest.raises(PreflightError, match=r"zstandard.*sparkdl-platform\[connect\]'"):
        active_session()


def test_program_that_spark_connect_cannot_send_is_refused() -> None:
    session: Any = Connect()
    program = Program(bytes(128 << 20), {}, largest="table")
    with pytest.raises(FunctionError) as refused:
        SparkCluster(session).check(PLAN, program)
    text = str(refused.value)
    assert "have 128 MiB, most of it in 'table', and Spark can send 127 MiB, because" in text
    assert "Spark Connect takes messages of 128 MiB. Write the data to a file" in text


@pytest.mark.slow
def test_program_that_the_driver_cannot_send_is_refused(spark: SparkSession) -> None:
    heap = spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory()  # type: ignore[union-attr]
    cluster = SparkCluster(spark)
    cluster.check(PLAN, Program(b"x", {}))
    with pytest.raises(FunctionError, match=rf"spark.driver.memory is {heap >> 20} MiB"):
        cluster.check(PLAN, Program(bytes(heap // 3 + 1), {}))


@pytest.mark.slow
def test_default_parallelism_needs_no_job(spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = tracker.getJobIdsForGroup(None)
    assert default_parallelism(spark) == spark.sparkContext.defaultParallelism == 2
    assert tracker.getJobIdsForGroup(None) == before


@pytest.mark.slow
def test_tasks_that_wait_are_counted_without_those_of_jobs_with_some_tags(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The session has two slots."""
    over, cluster = tmp_path / "over", SparkCluster(spark)

    def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not over.exists():
            time.sleep(0.05)
        yield from ones(batches)

    def job(num_tasks: int, *tags: str) -> threading.Thread:
        options: Any = {"resources": Resources(), "description": "waits", "tags": tags}
        options["num_tasks"] = num_tasks
        thread = threading.Thread(target=cluster.submit, args=(wait, "number long"), kwargs=options)
        thread.start()
        return thread

    threads = [job(3, "one")]
    try:
        assert eventually(lambda: cluster.num_waiting() == 1)
        threads.append(job(2, "two", "further"))
        assert eventually(lambda: cluster.num_waiting() == 3)
        assert (cluster.num_waiting("one"), cluster.num_waiting("further")) == (2, 1)
        assert cluster.num_waiting("one", "further") == cluster.num_waiting("one", "two") == 0
        assert cluster.num_spare(Resources(), 0) == 0
    finally:
        over.touch()
        for thread in threads:
            thread.join()


@pytest.mark.slow
def test_jobs_have_the_labels_of_the_thread_that_called_the_verb(spark: SparkSession) -> None:
    context = spark.sparkContext
    tracker = context._jsc.sc().statusTracker()  # type: ignore[union-attr]
    context.setJobGroup("the caller's", "a notebook cell")
    context.addJobTag("the caller's tag")
    context.setLocalProperty("spark.scheduler.pool", "night")
    labels: dict[str, Any] = {}

    def in_a_thread() -> None:
        submit(cluster, "trial 0: " + "1, " * 1000)
        labels["after"] = cluster._labels_of_thread(["spark.scheduler.pool", "spark.job.tags"])

    try:
        cluster = SparkCluster(spark)
        thread = threading.Thread(target=in_a_thread)
        thread.start()
        thread.join()
        jobs = [set(tracker.getJobIdsForTag(tag)) for tag in ("ours", "the caller's tag")]
        assert jobs[0] and jobs[0] == jobs[1] <= set(tracker.getJobIdsForGroup("the caller's"))
        assert labels["after"] == {"spark.scheduler.pool": None, "spark.job.tags": None}
        assert context.getLocalProperty("spark.job.description") == "a notebook cell"
        store = context._jsc.sc().statusStore()  # type: ignore[union-attr]
        job = store.job(max(jobs[0]))
        assert len(job.description().get()) <= MAX_DESCRIPTION
        assert job.description().get().endswith("1, ...")
        stage = store.lastStageAttempt(job.stageIds().last())
        assert stage.schedulingPool() in ("night", "default")  # FIFO has one pool only.
    finally:
        for name in ("spark.scheduler.pool", "spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]
        context.clearJobTags()


@pytest.mark.slow
def test_files_of_spark_do_not_grow_with_the_number_of_trials(
    three_executors: SparkSession, root: str
) -> None:
    """A function of 5 MB, in many trials of 1 MB parameters each."""
    table = os.urandom(5 << 20)
    column = "x" * (1 << 20)

    def megabytes(*folders: str) -> float:
        files = [path for folder in folders for path in Path(folder).rglob("*")]
        return sum(path.stat().st_size for path in files if path.is_file()) / (1 << 20)

    def train(x: int, column: str) -> dict[str, float]:
        folders = os.environ["SPARK_EXECUTOR_DIRS"].split(",")
        return {"value": len(table) + x, "megabytes": megabytes(*folders)}

    files = three_executors.sparkContext._temp_dir  # type: ignore[attr-defined]
    before = megabytes(files)
    run = experiment.launch(train, {"x": list(range(36)), "column": [column]}, **quiet(root))
    assert run.counts() == {"COMPLETE": 36}
    assert megabytes(files) == before
    sizes = [trial.outputs["megabytes"] for trial in run.trials]
    # Per executor: the function, and the parameters of some trials that Java has not yet removed.
    assert max(sizes[-6:]) - min(sizes[:6]) < 12, sizes


def test_slots_of_executors_that_are_still_to_come_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Starting(SparkCluster):
        num_registered = 0

        def __init__(self) -> None:
            pass

        def wait_for_executors(self, size: int, num_cpus: int | None = None) -> None:
            self.num_registered = 4

        def slots(self, resources: Resources, override: int | None = None) -> Slots:
            return Slots(self.num_registered, self.num_registered, "executors")

    monkeypatch.setattr("sparkdl.cluster.spark.SparkCluster", Starting)
    assert (num_slots(), num_slots(waits=True)) == (0, 4)
