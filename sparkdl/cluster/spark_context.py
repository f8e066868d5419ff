"""Runs on the driver. The only module that uses a SparkContext and its Java objects.

Spark Connect has neither: everything else works without them, or asks this module whether they are
there.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark stores the ends of tasks some moments later.
STORED_MS = 10_000
MAX_TASKS = 10_000

_logger = logging.getLogger("sparkdl.cluster")


@dataclass(frozen=True)
class FailedTask:
    """A task that has failed.

    Attributes:
        host: the host of its executor, as Spark knows it.
        executor: the id of the executor.
        error: the error of the task.
    """

    host: str
    executor: str
    error: str


class ClassicContext:
    """The SparkContext of a session that is not one of Spark Connect.

    Args:
        context: the SparkContext.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    @staticmethod
    def of(spark: "SparkSession | None") -> "ClassicContext | None":
        """Return the context of a session; None for Spark Connect, and without a session."""
        context = raw_context(spark)
        return None if context is None else ClassicContext(context)

    @property
    def _java(self) -> Any:
        return self._context._jsc.sc()

    # ---- the application

    @property
    def master(self) -> str:
        """The master URL."""
        return str(self._context.master)

    @property
    def application(self) -> str:
        """The id of the application."""
        return str(self._context.applicationId)

    @property
    def user(self) -> str:
        """The name of the user to whom the application belongs."""
        return str(self._context.sparkUser())

    @property
    def conf(self) -> dict[str, str]:
        """The settings of the application."""
        # `getConf` makes a copy first, one call of Java after the other.
        return dict(self._context._conf.getAll())

    @property
    def filesystem(self) -> str:
        """The URL of the default filesystem of the cluster."""
        hadoop = self._java.hadoopConfiguration()
        return str(hadoop.get("fs.defaultFS", "file:///"))

    @property
    def heap_bytes(self) -> int:
        """The largest size of the heap of the driver's Java process."""
        return int(self._context._jvm.java.lang.Runtime.getRuntime().maxMemory())

    @property
    def has_ended(self) -> bool:
        """True if the application has been stopped, or is about to stop."""
        java_context = self._context._jsc
        return java_context is None or bool(java_context.sc().isStopped())

    # ---- executors and tasks

    @property
    def num_executors(self) -> int:
        """The number of executors that have registered."""
        return len(self._java.statusTracker().getExecutorInfos()) - 1  # One is the driver.

    @property
    def num_running(self) -> int:
        """The number of tasks that run now, of all jobs of the application."""
        executors = self._java.statusTracker().getExecutorInfos()
        return sum(int(executor.numRunningTasks()) for executor in executors)

    def num_waiting(self, *tags: str) -> int:
        """Return the number of tasks that wait for slots, of all jobs with none of the tags."""
        tracker = self._java.statusTracker()
        stages = set(tracker.getActiveStageIds())
        # Of the jobs that run: a long night leaves many that have ended.
        running = self._context._jvm.java.util.ArrayList()
        running.add(self._context._jvm.org.apache.spark.JobExecutionStatus.RUNNING)
        others = stages.difference(*(self._stages_of(running, tag) for tag in tags))
        infos = [tracker.getStageInfo(stage) for stage in others]
        # A stage may have ended in the meantime.
        active = [info.get() for info in infos if info.isDefined()]
        return sum(_num_waiting(info) for info in active)

    @property
    def executor_ids(self) -> frozenset[str]:
        """The ids of the executors that have registered and are not lost."""
        ids = str(self._java.getExecutorIds().mkString(" "))
        return frozenset(ids.split())

    @property
    def decommissioned(self) -> frozenset[str]:
        """The ids of the executors that Spark is decommissioning."""
        pending = self._java.taskScheduler().executorsPendingDecommission()
        return frozenset(str(pending.keySet().mkString(" ")).split())

    @property
    def num_tasks(self) -> int:
        """The number of tasks of the default profile that Spark runs at once.

        The number is the one with which Spark checks whether a barrier job fits.
        """
        profile = self._java.resourceProfileManager().defaultResourceProfile()
        return int(self._java.maxNumConcurrentTasks(profile))

    @property
    def num_cores(self) -> int:
        """The number of CPU cores of all executors, also where GPUs limit the number of tasks."""
        return int(self._java.maxNumConcurrentTasks(self._one_core))

    @cached_property
    def _one_core(self) -> Any:
        """A profile of tasks with one core and no GPU, which Spark must know before it counts."""
        from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

        profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(1)).build
        java_profile = profile._java_resource_profile
        self._java.resourceProfileManager().addResourceProfile(java_profile)
        return java_profile

    def failed_tasks(self, tag: str) -> list[FailedTask]:
        """Return the failed tasks of the jobs with a tag, also of jobs that have succeeded later.

        Raises:
            Exception: if this version of Spark does not tell.
        """
        java_context = self._java
        java_context.listenerBus().waitUntilEmpty(STORED_MS)
        store = java_context.statusStore()
        stages = sorted(self._stages(tag))
        lists = [store.taskList(stage, 0, MAX_TASKS) for stage in stages]
        tasks = [tasks.apply(number) for tasks in lists for number in range(tasks.size())]
        return [
            FailedTask(task.host(), task.executorId(), task.errorMessage().get())
            for task in tasks
            if task.status() == "FAILED" and task.errorMessage().isDefined()
        ]

    def _stages(self, tag: str) -> set[int]:
        """Return the stages of the jobs with a tag."""
        tracker = self._java.statusTracker()
        if "getJobIdsForTag" in dir(tracker):  # Spark 4.0.
            jobs = [tracker.getJobInfo(job).get() for job in tracker.getJobIdsForTag(tag)]
            return {stage for job in jobs for stage in job.stageIds()}
        return self._stages_of(None, tag)

    def _stages_of(self, states: Any, tag: str) -> set[int]:
        """Return the stages of the jobs in some states, or in any, with a tag."""
        jobs = self._java.statusStore().jobsList(states)
        tagged = [job for job in map(jobs.apply, range(jobs.size())) if job.jobTags().contains(tag)]
        ids = [job.stageIds() for job in tagged]
        return {stages.apply(number) for stages in ids for number in range(stages.size())}

    # ---- jobs

    def broadcast(self, value: Any) -> Any:
        """Return a broadcast variable."""
        return self._context.broadcast(value)

    def properties(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the properties of this thread by which its jobs are scheduled and grouped."""
        return {key: self._context.getLocalProperty(key) for key in keys}

    def set_properties(self, properties: Mapping[str, Any]) -> None:
        """Set properties of this thread; None removes a property."""
        for key, value in properties.items():
            self._context.setLocalProperty(key, value)

    def describe(self, text: str) -> None:
        """Set the description of the jobs of this thread."""
        self._context.setJobDescription(text)

    def add_tag(self, tag: str) -> None:
        """Add a tag to the jobs of this thread. Tags of the session do not reach their jobs."""
        self._context.addJobTag(tag)

    def cancel(self, tag: str) -> None:
        """End all jobs with a tag."""
        self._context.cancelJobsWithTag(tag)


def _num_waiting(stage: Any) -> int:
    """Return the number of tasks of a stage that wait for slots."""
    return max(0, int(stage.numTasks() - stage.numActiveTasks() - stage.numCompletedTasks()))


def failed_tasks(spark: "SparkSession | None", tag: str) -> list[FailedTask]:
    """Return the failed tasks of the jobs with a tag, also of jobs that have succeeded later.

    The error of a DataFrame's job does not name the executor on which the job's task has failed.
    The list is empty where Spark does not tell, such as on Spark Connect.

    Args:
        spark: the session that has run the jobs.
        tag: the tag of the jobs.
    """
    context = ClassicContext.of(spark)
    if context is None:
        return []
    try:
        return context.failed_tasks(tag)
    except Exception as exc:  # noqa: BLE001 Other versions of Spark may lack these methods.
        _logger.debug("Spark does not tell which tasks have failed: %s", exc)
        return []


def raw_context(spark: "SparkSession | None") -> Any:
    """Return the SparkContext of a session; None for Spark Connect, and without a session."""
    return getattr(spark, "_sc", None)


def has_java_part() -> bool:
    """Return False if pyspark is the client of Spark Connect only."""
    import pyspark

    return hasattr(pyspark, "SparkContext")


def is_classic_running() -> bool:
    """Return True if this process has a SparkContext that has not been stopped."""
    import pyspark

    classic = getattr(pyspark, "SparkContext", None)
    return classic is not None and classic._active_spark_context is not None


def conf_before_start() -> Callable[[str], str | None]:
    """Return what reads the settings that a session has from files and from `spark-submit`.

    Spark's Java part, which reads them, is started for it, as the session would do next.
    """
    import pyspark

    pyspark.SparkContext._ensure_initialized()
    conf = pyspark.SparkConf(_jvm=pyspark.SparkContext._jvm)
    return lambda key: conf.get(key, None)
