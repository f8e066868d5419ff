"""Runs on the driver. Count the slots of a Spark session, and wait for its executors.

No count runs a Spark job: a job would wait for a slot behind the running trials.
"""

import re
import time
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster.plan import Plan, Resources
from sparkdl.cluster.slots import Slots
from sparkdl.cluster.spark_settings import SparkSettings
from sparkdl.errors import SlotsError

__all__ = ["SlotCounter", "default_parallelism"]

# Executors need some time to register, and some never register: the wait for executors ends after
# REGISTER_S without any new slot, or after SETTLED_S once there are enough slots for one trial.
REGISTER_S = 30.0
SETTLED_S = 5.0

# With dynamic allocation, the largest number of slots that are expected to come.
MAX_SLOTS_TO_COME = 1000


class SlotCounter:
    """The slots of a Spark session.

    Args:
        spark: the session.
        settings: the settings of its application.
    """

    def __init__(self, spark: SparkSession, settings: SparkSettings) -> None:
        self._spark = spark
        self._settings = settings
        # Spark Connect has no SparkContext.
        self._context: Any = getattr(spark, "_sc", None)

    def check(self, plan: Plan) -> None:
        """Validate that one executor can hold one process of the plan.

        Raises:
            SlotsError: if a process asks for more GPUs or CPUs than an executor has.
        """
        resources, settings = plan.resources, self._settings
        if settings.is_embedded and settings.task_gpus:
            raise SlotsError(
                f"spark.task.resource.gpu.amount={settings.task_gpus:g} is set, but embedded Spark "
                f"({settings.master}) schedules no GPUs and would wait indefinitely. Unset that "
                "setting, and set SPARKDL_DETECT_GPUS=1 to let trials use the GPUs of this host."
            )
        have = settings.executor_gpus
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

    def _executor_cores(self) -> int:
        if self._settings.is_embedded and not self._settings.conf("spark.executor.cores"):
            return self._num_tasks() * self._settings.task_cpus
        return self._settings.executor_cores

    def _num_tasks(self) -> int:
        """Return the number of tasks of the default profile that Spark runs at once.

        The number is the one with which Spark checks whether a barrier job fits.
        """
        if not self._context:
            return self._num_tasks_of_connect()
        context = self._context._jsc.sc()
        profile = context.resourceProfileManager().defaultResourceProfile()
        return int(context.maxNumConcurrentTasks(profile))

    def _num_tasks_of_connect(self) -> int:
        """Return the number of tasks at once that follows from what Spark Connect shows.

        The default parallelism is the number of cores of all present executors, but at least 2,
        unless it has been set. The settings say how many executors there can be.
        """
        conf, cpus = self._settings.conf, self._settings.task_cpus
        limit = self._settings.num_slots
        keys = ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism")
        if limit is not None and any(conf(key) for key in keys):
            return limit
        count = default_parallelism(self._spark) // cpus
        return count if limit is None else min(count, limit)

    def _num_executors(self) -> int:
        settings = self._settings
        if settings.is_embedded:
            return 1
        if self._context:
            tracker = self._context._jsc.sc().statusTracker()
            return max(1, len(tracker.getExecutorInfos()) - 1)  # One of them is the driver.
        if settings.executor_cores:
            return max(1, self._num_tasks() * settings.task_cpus // settings.executor_cores)
        return settings.num_executors or 1

    def slots(self, resources: Resources, override: int | None = None) -> Slots:
        """Return the number of processes with these resources that Spark can run at once."""
        settings = self._settings
        cpus = resources.num_cpus or settings.task_cpus
        if override:
            return Slots(override, override * cpus, "SPARKDL_SLOTS")
        if settings.adds_executors:
            return self._slots_to_come(cpus)
        num_tasks = self._num_tasks()
        cores = num_tasks * settings.task_cpus
        place = settings.master
        if not self._context:
            place += ", as far as Spark Connect shows; SPARKDL_SLOTS sets another number"
        if not settings.needs_profile(resources):
            return Slots(num_tasks, cores, f"{num_tasks} slots of {place}")
        executors = self._num_executors()
        count = executors * (max(cores // executors, 1) // cpus)
        if resources.num_gpus and settings.executor_gpus:
            count = min(count, executors * (settings.executor_gpus // resources.num_gpus))
        return Slots(count, cores, f"{count} slots with {resources} of {place}")

    def _slots_to_come(self, cpus: int) -> Slots:
        """Return the slots that dynamic allocation may bring, as it adds executors on demand."""
        most = self._settings.conf("spark.dynamicAllocation.maxExecutors")
        max_executors = int(most or MAX_SLOTS_TO_COME)
        per_executor = max(1, self._executor_cores() // cpus)
        count = min(max_executors * per_executor, MAX_SLOTS_TO_COME)
        reason = f"dynamic allocation of at most {max_executors} executors"
        return Slots(count, count * cpus, reason, on_demand=True)

    def slots_now(self, resources: Resources) -> int:
        """Return the number of processes that fit on the present executors, at least one."""
        if self._settings.adds_executors:
            return max(1, min(self._num_tasks(), MAX_SLOTS_TO_COME))
        return max(1, min(self.slots(resources).count, MAX_SLOTS_TO_COME))

    def wait_for_executors(self, size: int) -> None:
        """Wait for executors to register, in a new session or after the loss of an executor.

        Args:
            size: number of slots that are needed at once.
        """
        settings = self._settings
        if settings.is_embedded or settings.adds_executors:
            return  # Embedded Spark has its only executor; dynamic allocation adds some on demand.
        num_expected = settings.num_executors or 1
        per_executor = max(1, self._executor_cores() // settings.task_cpus)
        fits = size <= num_expected * per_executor
        # A standalone cluster gives an application all cores, and its executors come one by one.
        num_needed = size if fits or settings.num_executors is None else 1
        num_enough = num_needed if fits else 1
        most_slots = 0
        changed_s = time.monotonic()
        while time.monotonic() - changed_s < (
            SETTLED_S if most_slots >= num_enough else REGISTER_S
        ):
            count = self._num_tasks()
            # Spark lists a lost executor for a moment after its slots have gone: check both.
            if count >= num_needed and self._num_executors() >= num_expected:
                return
            if count > most_slots:
                most_slots = count
                changed_s = time.monotonic()
            time.sleep(0.1)


def default_parallelism(spark: SparkSession) -> int:
    """Return the number of partitions into which Spark divides a range, without running a job.

    Raises:
        SlotsError: if Spark does not tell.
    """
    plan: str = spark.sql("EXPLAIN SELECT * FROM range(1048576)").collect()[0][0]
    if match := re.search(r"splits=(?:Some\()?(\d+)", plan):
        return int(match[1])
    raise SlotsError(
        "Spark Connect does not show how many tasks run at once. Set SPARKDL_SLOTS to that number."
    )
