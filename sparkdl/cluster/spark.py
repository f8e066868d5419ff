"""Runs on the driver. Everything that is asked of Spark: a session, its slots, jobs, their end."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import DataFrame, SparkSession

from sparkdl import config
from sparkdl.cluster.plan import Plan, Resources
from sparkdl.cluster.slots import Slots
from sparkdl.cluster.spark_errors import job_failed
from sparkdl.errors import SlotsError

__all__ = ["Cluster"]

# How long executors may take to register; some never come: none for a while is an answer too.
REGISTER_S = 30.0
SETTLED_S = 5.0

# Jobs that are given to Spark at once, however many executors it may start.
MOST_WAITING = 1000


class Cluster:
    """A Spark session as sparkdl uses it.

    Args:
        spark: the session; None takes the active one, or starts one as configured, which on a
            laptop is embedded Spark on all cores.
    """

    def __init__(self, spark: SparkSession | None = None) -> None:
        self.spark = spark or SparkSession.getActiveSession() or _new_session()
        self._profiles: dict[Resources, Any] = {}
        # Spark Connect has no SparkContext; what needs it is left out there.
        self._context = getattr(self.spark, "_sc", None)
        # A copy: each look at Spark's own costs some milliseconds, and it does not change.
        self._conf = dict(self._context.getConf().getAll()) if self._context else {}
        if self._context and self.is_local and "PYSPARK_PYTHON" not in os.environ:
            self._context.pythonExec = sys.executable

    def conf(self, key: str) -> str | None:
        """A value of the Spark configuration, or None."""
        if self._context:
            return self._conf.get(key)
        value: str | None = self.spark.conf.get(key, None)
        return value

    @property
    def master(self) -> str:
        """Spark's master URL, such as `local[*]`."""
        return self._context.master if self._context else (self.conf("spark.master") or "connect")

    @property
    def is_local(self) -> bool:
        """Whether all executors are on this host (`local` and `local-cluster` masters)."""
        return self.master.startswith("local")

    @property
    def application(self) -> str:
        """Spark's application id."""
        return self._context.applicationId if self._context else str(self.conf("spark.app.id"))

    def root(self) -> str:
        """Where runs go: as set, else `runs`, else the user's folder on the cluster's store."""
        if root := config.resolve("root", None, self.conf):
            return str(root)
        if self.is_local or not self._context:
            return "runs"
        hadoop = self._context._jsc.sc().hadoopConfiguration()
        filesystem = hadoop.get("fs.defaultFS", "file:///").rstrip("/")
        user = self._context.sparkUser()
        return "runs" if filesystem.startswith("file:") else f"{filesystem}/user/{user}/sparkdl"

    def check(self, plan: Plan) -> None:
        """See that one executor can hold one process of the plan.

        Raises:
            SlotsError: it asks for more GPUs or CPUs than an executor has.
        """
        resources = plan.resources
        if self._is_embedded and self._task_gpus():
            raise SlotsError(
                f"spark.task.resource.gpu.amount={self._task_gpus():g} is set, but embedded Spark "
                f"({self.master}) schedules no GPUs and would wait for ever. Unset it, and set "
                "SPARKDL_DETECT_GPUS=1 for trials to see this host's GPUs."
            )
        have = self._executor_gpus()
        need = resources.num_gpus or 0
        if need > have and not (plan.detect_gpus and not have):
            raise SlotsError(
                f"num_gpus={need} was asked for each process, but Spark has {have} GPUs on an "
                "executor. Lower num_gpus, or start Spark with "
                f"spark.executor.resource.gpu.amount={need} (and "
                "spark.executor.resource.gpu.discoveryScript, see conf/); embedded Spark "
                "schedules none, there set SPARKDL_DETECT_GPUS=1."
            )
        cores = self._executor_cores()
        if resources.num_cpus and cores and resources.num_cpus > cores:
            raise SlotsError(
                f"num_cpus={resources.num_cpus} was asked for each process, but an executor has "
                f"{cores} cores. Lower num_cpus, or start Spark with spark.executor.cores="
                f"{resources.num_cpus}."
            )

    @property
    def _is_embedded(self) -> bool:
        return self.master.startswith("local") and not self.master.startswith("local-cluster")

    @property
    def most_gpus(self) -> int | None:
        """The GPUs of an executor; None where Spark schedules none."""
        return self._executor_gpus() or None

    def _executor_gpus(self) -> int:
        amount = self.conf("spark.executor.resource.gpu.amount")
        return 0 if self._is_embedded else int(amount or 0)

    def _executor_cores(self) -> int:
        if cores := self.conf("spark.executor.cores"):
            return int(cores)
        if found := re.match(r"local-cluster\[\s*\d+\s*,\s*(\d+)", self.master):
            return int(found[1])
        return self._default_slots() * self._task_cpus() if self.is_local else 0

    def _task_cpus(self) -> int:
        return int(self.conf("spark.task.cpus") or 1)

    def _task_gpus(self) -> float:
        return float(self.conf("spark.task.resource.gpu.amount") or 0)

    def _default_slots(self) -> int:
        """How many tasks of the default profile Spark runs at once, as its barrier check counts."""
        if not self._context:
            # Spark Connect shows the cluster's default parallelism only by using it.
            parts = self.spark.range(1 << 20).selectExpr("spark_partition_id() AS part")
            return int(parts.distinct().count())
        context = self._context._jsc.sc()
        profile = context.resourceProfileManager().defaultResourceProfile()
        return int(context.maxNumConcurrentTasks(profile))

    def _num_executors(self) -> int:
        if not self._context or self._is_embedded:
            return 1
        tracker = self._context._jsc.sc().statusTracker()
        return max(1, len(tracker.getExecutorInfos()) - 1)  # One of them is the driver.

    def slots(self, resources: Resources, override: int | None = None) -> Slots:
        """How many processes with these resources Spark can run at once, now."""
        cpus = resources.num_cpus or self._task_cpus()
        if override:
            return Slots(override, override * cpus, "SPARKDL_SLOTS")
        if self.conf("spark.dynamicAllocation.enabled") == "true":
            return self._slots_to_come(cpus)
        default = self._default_slots()
        cores = default * self._task_cpus()
        if not self._needs_profile(resources):
            return Slots(default, cores, f"{default} slots of {self.master}")
        executors = self._num_executors()
        count = executors * (max(cores // executors, 1) // cpus)
        if resources.num_gpus and self._executor_gpus():
            count = min(count, executors * (self._executor_gpus() // resources.num_gpus))
        return Slots(count, cores, f"{count} slots of {self.master} with {resources}")

    def _slots_to_come(self, cpus: int) -> Slots:
        """With dynamic allocation, executors come for the jobs that wait: let many wait."""
        most = int(self.conf("spark.dynamicAllocation.maxExecutors") or MOST_WAITING)
        each = max(1, self._executor_cores() // cpus)
        count = min(most * each, MOST_WAITING)
        return Slots(count, count * cpus, f"dynamic allocation of at most {most} executors")

    def slots_now(self, resources: Resources) -> int:
        """How many processes fit on the executors there are, at least one."""
        if self.conf("spark.dynamicAllocation.enabled") == "true":
            return max(1, min(self._default_slots(), MOST_WAITING))
        return max(1, min(self.slots(resources).count, MOST_WAITING))

    def wait_for_executors(self, size: int) -> None:
        """Give executors time to register, in a young session and after one was lost."""
        if self._is_embedded or self.conf("spark.dynamicAllocation.enabled") == "true":
            return  # There is one; or they come with the work.
        found = re.match(r"local-cluster\[\s*(\d+)", self.master)
        expected = int(found[1] if found else self.conf("spark.executor.instances") or 1)
        each = max(1, self._executor_cores() // self._task_cpus())
        need = size if size <= expected * each else 1
        seen, changed_s = 0, time.monotonic()
        while time.monotonic() - changed_s < (SETTLED_S if seen >= need else REGISTER_S):
            slots = self._default_slots()
            if slots >= need and self._num_executors() >= expected:
                return  # Both: a lost executor is listed for a moment longer than it has slots.
            if slots > seen:
                seen, changed_s = slots, time.monotonic()
            time.sleep(0.1)

    def enforces(self, resources: Resources) -> bool:
        """Whether Spark itself runs no more processes with these resources than it has slots."""
        return not (self._needs_profile(resources) and self._is_embedded)

    def _needs_profile(self, resources: Resources) -> bool:
        cpus = resources.num_cpus or self._task_cpus()
        return (cpus, self._gpus(resources)) != (self._task_cpus(), self._task_gpus())

    def _gpus(self, resources: Resources) -> float:
        """The GPUs that Spark is asked for: a process that wants none takes an ordinary slot and
        is shown none; where Spark schedules none, our locks share them out."""
        return (resources.num_gpus if self._executor_gpus() else 0) or self._task_gpus()

    def _profile(self, resources: Resources) -> Any:
        if not self._needs_profile(resources) or self._is_embedded:
            return None  # Embedded Spark has one profile: there we start fewer processes at once.
        if resources in self._profiles:
            return self._profiles[resources]  # Spark tells executors apart by their profile.
        requests = TaskResourceRequests().cpus(resources.num_cpus or self._task_cpus())
        if gpus := self._gpus(resources):
            requests = requests.resource("gpu", gpus)
        self._profiles[resources] = ResourceProfileBuilder().require(requests).build
        return self._profiles[resources]

    def submit(
        self,
        task: Callable[..., Iterator[Any]],
        schema: str,
        *,
        num_tasks: int = 1,
        resources: Resources,
        description: str,
        tags: tuple[str, ...],
        barrier: bool = False,
        rows: DataFrame | None = None,
    ) -> list[Any]:
        """Run a job of `num_tasks` tasks; return their rows.

        Each is given a partition of `rows`, which has as many, by default its number as a row.

        With `barrier`, Spark starts all tasks at once or none, and they know of each other.

        Raises:
            JobFailed: the job was cancelled, lost its executor too often, or raised.
        """
        with self._labelled(description, tags):
            numbers = self.spark.range(num_tasks, numPartitions=num_tasks)
            profile = self._profile(resources)

            def run(given: DataFrame) -> list[Any]:
                job = given.mapInArrow(task, schema, barrier=barrier, profile=profile)
                try:
                    collected: list[Any] = job.collect()
                    return collected
                except Exception as exc:
                    raise job_failed(exc) from exc

            # Of rows that Spark finds to be none it makes no task at all.
            return run(rows or numbers) or run(numbers.mapInArrow(_nothing, "id long"))

    @contextmanager
    def _labelled(self, description: str, tags: tuple[str, ...]) -> Iterator[None]:
        # In classic, tags of the session do not reach the jobs of a collect: use the context's.
        owner = self._context or self.spark
        add = owner.addJobTag if self._context else owner.addTag
        remove = owner.removeJobTag if self._context else owner.removeTag
        before = self._context and self._context.getLocalProperty("spark.job.description")
        if self._context:
            self._context.setJobDescription(description)
        for tag in tags:
            add(tag)
        try:
            yield
        finally:
            if self._context:
                self._context.setJobDescription(before)
            for tag in tags:
                remove(tag)

    def cancel(self, tag: str) -> None:
        """End all jobs with this tag; their training processes end with their tasks."""
        if self._context:
            self._context.cancelJobsWithTag(tag)
        else:
            self.spark.interruptTag(tag)


def _nothing(batches: Iterable[Any]) -> Iterator[Any]:
    """No row, which Spark cannot know beforehand."""
    for _ in batches:
        pass
    yield from ()


def _new_session() -> SparkSession:
    # Executors of an embedded Spark run this very Python, not the first one in PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark's own bar of stages would be drawn over ours.
    builder = SparkSession.builder.config("spark.ui.showConsoleProgress", "false")
    return builder.appName("sparkdl").getOrCreate()
