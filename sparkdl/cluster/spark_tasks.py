"""Runs on the driver. Read from Spark which tasks have failed, and where.

The error of a DataFrame's job does not name the executor on which the job's task has failed.
"""

import logging
from dataclasses import dataclass

from pyspark.sql import SparkSession

__all__ = ["FailedTask", "failed_tasks"]

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


def failed_tasks(spark: SparkSession | None, tag: str) -> list[FailedTask]:
    """Return the failed tasks of the jobs with a tag, also of jobs that have succeeded later.

    The list is empty where Spark does not tell, such as on Spark Connect.

    Args:
        spark: the session that has run the jobs.
        tag: the tag of the jobs.
    """
    # Spark Connect has no SparkContext.
    context = getattr(spark, "_sc", None)
    if context is None:
        return []
    try:
        java_context = context._jsc.sc()
        java_context.listenerBus().waitUntilEmpty(STORED_MS)
        tracker, store = java_context.statusTracker(), java_context.statusStore()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(tag)]
        stages = sorted({stage for job in jobs for stage in job.get().stageIds()})
        lists = [store.taskList(stage, 0, MAX_TASKS) for stage in stages]
        tasks = [tasks.apply(number) for tasks in lists for number in range(tasks.size())]
        return [
            FailedTask(task.host(), task.executorId(), task.errorMessage().get())
            for task in tasks
            if task.status() == "FAILED" and task.errorMessage().isDefined()
        ]
    except Exception as exc:  # noqa: BLE001 Other versions of Spark may lack these methods.
        _logger.debug("Spark does not tell which tasks have failed: %s", exc)
        return []
