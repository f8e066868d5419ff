"""Runs on the driver. The Spark session as a cluster: slots, jobs, cancellation."""

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

__all__ = ["SparkCluster"]

# Executors need some time to register, and some never register: the wait for executors ends after
# REGISTER_S without any new slot, or after SETTLED_S once there are enough slots for one trial.
REGISTER_S = 30.0
SETTLED_S = 5.0

# With dynamic allocation, the largest number of jobs that Spark holds at once.
MAX_WAITING = 1000


class SparkCluster:
    """A Spark session, as an implementation of `sparkdl.cluster.base.Cluster`.

    Args:
        spark: the session; None takes the active session, or starts one as configured. On a
            laptop this is embedded Spark on all cores.
    """

    def __init__(self, spark: SparkSession | None = None) -> None:
        self.spark = spark or SparkSession.getActiveSession() or _new_session()
        self._profiles: dict[Resources, Any] = {}
        # Spark Connect has no SparkContext.
        self._context = getattr(self.spark, "_sc", None)
        # Reading a value from the JVM takes some milliseconds, and the values do not change.
        self._conf = dict(self._context.getConf().getAll()) if self._context else {}
        if self._context and self.is_local and "PYSPARK_PYTHON" not in os.environ:
            self._context.pythonExec = sys.executable

    @property
    def version(self) -> str:
        """The version of Spark."""
        return str(self.spark.version)

    def conf(self, key: str) -> str | None:
        """Return a value of the Spark configuration, or None."""
        if self._context:
            return self._conf.get(key)
        value: str | None = self.spark.conf.get(key, None)
        return value

    @property
    def master(self) -> str:
        """The master URL of Spark, such as `local[*]`."""
        return self._context.master if self._context else (self.conf("spark.master") or "connect")

    @property
    def is_local(self) -> bool:
        """True if all executors run on this host (`local` and `local-cluster` masters)."""
        return self.master.startswith("local")

    @property
    def application(self) -> str:
        """The id of the Spark application."""
        return self._context.applicationId if self._context else str(self.conf("spark.app.id"))

    def root(self) -> str:
        """Return the default folder of runs.

        The folder is the setting `root` if there is one, `runs` on a local or mounted disk, and a
        folder of the user on the default filesystem of the cluster.
        """
        if root := config.resolve("root", None, self.conf):
            return str(root)
        if self.is_local or not self._context:
            return "runs"
        hadoop = self._context._jsc.sc().hadoopConfiguration()
        filesystem = hadoop.get("fs.defaultFS", "file:///").rstrip("/")
        user = self._context.sparkUser()
        return "runs" if filesystem.startswith("file:") else f"{filesystem}/user/{user}/sparkdl"

    def check(self, plan: Plan) -> None:
        """Validate that one executor can hold one process of the plan.

        Raises:
            SlotsError: if a process asks for more GPUs or CPUs than an executor has.
        """
        resources = plan.resources
        if self._is_embedded and self._task_gpus():
            raise SlotsError(
                f"spark.task.resource.gpu.amount={self._task_gpus():g} is set, but embedded Spark "
                f"({self.master}) schedules no GPUs and would wait indefinitely. Unset that "
                "setting, and set SPARKDL_DETECT_GPUS=1 to let trials use the GPUs of this host."
            )
        have = self._executor_gpus()
        need = resources.num_gpus or 0
        if need > have and not (plan.detect_gpus and not have):
            raise SlotsError(
                f"num_gpus={need} was requested for each process, but an executor of Spark has "
                f"{have} GPUs. Lower num_gpus, or start Spark with "
                f"spark.executor.resource.gpu.amount={need} (and "
                "spark.executor.resource.gpu.discoveryScript, see conf/). Embedded Spark "
                "schedules no GPUs; set SPARKDL_DETECT_GPUS=1 there."
            )
        cores = self._executor_cores()
        if resources.num_cpus and cores and resources.num_cpus > cores:
            raise SlotsError(
                f"num_cpus={resources.num_cpus} was requested for each process, but an executor "
                f"has {cores} cores. Lower num_cpus, or start Spark with spark.executor.cores="
                f"{resources.num_cpus}."
            )

    @property
    def _is_embedded(self) -> bool:
        return self.master.startswith("local") and not self.master.startswith("local-cluster")

    @property
    def most_gpus(self) -> int | None:
        """The number of GPUs of an executor; None if Spark schedules no GPUs."""
        return self._executor_gpus() or None

    def _executor_gpus(self) -> int:
        amount = self.conf("spark.executor.resource.gpu.amount")
        return 0 if self._is_embedded else int(amount or 0)

    def _executor_cores(self) -> int:
        if cores := self.conf("spark.executor.cores"):
            return int(cores)
        if match := re.match(r"local-cluster\[\s*\d+\s*,\s*(\d+)", self.master):
            return int(match[1])
        return self._default_slots() * self._task_cpus() if self.is_local else 0

    def _task_cpus(self) -> int:
        return int(self.conf("spark.task.cpus") or 1)

    def _task_gpus(self) -> float:
        return float(self.conf("spark.task.resource.gpu.amount") or 0)

    def _default_slots(self) -> int:
        """Return the number of tasks of the default profile that Spark runs at once.

        The number is the one with which Spark checks whether a barrier job fits.
        """
        if not self._context:
            # Spark Connect offers no way to read the default parallelism but to use it.
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

    def executors(self) -> tuple[int, int]:
        """Return the number of executors that have registered, and the number to be expected."""
        if not self._context or self._is_embedded:
            return 1, 1
        infos = self._context._jsc.sc().statusTracker().getExecutorInfos()
        return len(infos) - 1, self._num_expected()  # One of them is the driver.

    def _num_expected(self) -> int:
        match = re.match(r"local-cluster\[\s*(\d+)", self.master)
        return int(match[1] if match else self.conf("spark.executor.instances") or 1)

    def slots(self, resources: Resources, override: int | None = None) -> Slots:
        """Return the number of processes with these resources that Spark can run at once."""
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
        """Return the slots that dynamic allocation may bring, as it adds executors on demand."""
        max_executors = int(self.conf("spark.dynamicAllocation.maxExecutors") or MAX_WAITING)
        per_executor = max(1, self._executor_cores() // cpus)
        count = min(max_executors * per_executor, MAX_WAITING)
        reason = f"dynamic allocation of at most {max_executors} executors"
        return Slots(count, count * cpus, reason)

    def slots_now(self, resources: Resources) -> int:
        """Return the number of processes that fit on the present executors, at least one."""
        if self.conf("spark.dynamicAllocation.enabled") == "true":
            return max(1, min(self._default_slots(), MAX_WAITING))
        return max(1, min(self.slots(resources).count, MAX_WAITING))

    def wait_for_executors(self, size: int) -> None:
        """Wait for executors to register, in a new session or after the loss of an executor.

        Args:
            size: number of slots that are needed at once.
        """
        if self._is_embedded or self.conf("spark.dynamicAllocation.enabled") == "true":
            return  # Embedded Spark has its only executor; dynamic allocation adds some on demand.
        num_expected = self._num_expected()
        per_executor = max(1, self._executor_cores() // self._task_cpus())
        num_needed = size if size <= num_expected * per_executor else 1
        most_slots = 0
        changed_s = time.monotonic()
        while time.monotonic() - changed_s < (
            SETTLED_S if most_slots >= num_needed else REGISTER_S
        ):
            slots = self._default_slots()
            # Spark lists a lost executor for a moment after its slots have gone: check both.
            if slots >= num_needed and self._num_executors() >= num_expected:
                return
            if slots > most_slots:
                most_slots = slots
                changed_s = time.monotonic()
            time.sleep(0.1)

    def enforces(self, resources: Resources) -> bool:
        """Return True if Spark itself never runs more such processes than it has slots."""
        return not (self._needs_profile(resources) and self._is_embedded)

    def _needs_profile(self, resources: Resources) -> bool:
        cpus = resources.num_cpus or self._task_cpus()
        return (cpus, self._gpus(resources)) != (self._task_cpus(), self._task_gpus())

    def _gpus(self, resources: Resources) -> float:
        """Return the number of GPUs to request from Spark for each task.

        A process without GPUs takes an ordinary slot, and its GPUs are hidden from it. Where Spark
        schedules no GPUs, the locks of `sparkdl.cluster.gpus` assign them.
        """
        return (resources.num_gpus if self._executor_gpus() else 0) or self._task_gpus()

    def _profile(self, resources: Resources) -> Any:
        if not self._needs_profile(resources) or self._is_embedded:
            return None  # Embedded Spark has one profile only; `Concurrency` starts fewer trials.
        if resources in self._profiles:
            # Spark reserves executors for each profile object: use the same object again.
            return self._profiles[resources]
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
        """Run a job, wait for its end and return the rows that its tasks yielded.

        See `sparkdl.cluster.base.Cluster.submit`.

        Raises:
            JobFailed: if the job was cancelled, lost its executor too often, or raised.
        """
        with self._labelled(description, tags):
            numbers = self.spark.range(num_tasks, numPartitions=num_tasks)
            profile = self._profile(resources)

            def run(partitions: DataFrame) -> list[Any]:
                job = partitions.mapInArrow(task, schema, barrier=barrier, profile=profile)
                try:
                    collected: list[Any] = job.collect()
                    return collected
                except Exception as exc:
                    raise job_failed(exc) from exc

            # Spark starts no task for a DataFrame that it knows to be empty.
            return run(rows or numbers) or run(numbers.mapInArrow(_no_rows, "id long"))

    @contextmanager
    def _labelled(self, description: str, tags: tuple[str, ...]) -> Iterator[None]:
        # In classic Spark, tags of the session do not reach the jobs of a collect; tags of the
        # context do.
        owner = self._context or self.spark
        add = owner.addJobTag if self._context else owner.addTag
        remove = owner.removeJobTag if self._context else owner.removeTag
        previous = self._context and self._context.getLocalProperty("spark.job.description")
        if self._context:
            self._context.setJobDescription(description)
        for tag in tags:
            add(tag)
        try:
            yield
        finally:
            if self._context:
                self._context.setJobDescription(previous)
            for tag in tags:
                remove(tag)

    def cancel(self, tag: str) -> None:
        """End all jobs that carry the tag; their training processes end with their tasks."""
        if self._context:
            self._context.cancelJobsWithTag(tag)
        else:
            self.spark.interruptTag(tag)


def _no_rows(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield nothing; Spark cannot know so in advance and starts the tasks."""
    for _ in batches:
        pass
    yield from ()


def _new_session() -> SparkSession:
    # Executors of embedded Spark must run the Python of the driver, not the first one in PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark's progress bar of stages would be drawn over the progress display of the run.
    builder = SparkSession.builder.config("spark.ui.showConsoleProgress", "false")
    return builder.appName("sparkdl").getOrCreate()
