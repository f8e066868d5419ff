"""Runs on the driver. Count the slots of a Spark session, and wait for its executors.

No count runs a Spark job: a job would wait for a slot behind the running trials.
"""

import math
import time
from typing import TYPE_CHECKING

from sparkdl.cluster.plan import Plan, Resources
from sparkdl.cluster.slots import Slots
from sparkdl.cluster.spark_context import ClassicContext
from sparkdl.cluster.spark_explained import default_parallelism
from sparkdl.cluster.spark_settings import SparkSettings, check_growth
from sparkdl.errors import SlotsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        context: its SparkContext; None for Spark Connect.
    """

    def __init__(
        self,
        spark: "SparkSession",
        settings: SparkSettings,
        context: ClassicContext | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._context = context

    def check(self, plan: Plan) -> None:
        """Validate that one executor can hold one process of the plan.

        Raises:
            SlotsError: if a process asks for more GPUs or CPUs than an executor has.
            PreflightError: if Spark does not tell into which slots a gang could grow.
        """
        check_growth(plan, has_context=self._context is not None)
        resources, settings = plan.resources, self._settings
        if settings.is_embedded and settings.task_gpus:
            raise SlotsError(
                f"spark.task.resource.gpu.amount={settings.task_gpus:g} is set, but embedded Spark "
                f"({settings.master}) schedules no GPUs and would wait indefinitely. Unset that "
                "setting, and set SPARKDL_DETECT_GPUS=1 to let trials use the GPUs of this host."
            )
        have = settings.executor_gpus
        need = resources.num_gpus or 0
        if 0 < need < 1:
            self._check_fraction(plan, need)
        if need > have and not (plan.detect_gpus and not have):
            raise SlotsError(
                f"num_gpus={need:g} was requested for each process, but an executor of Spark has "
                f"{have} GPUs. Lower num_gpus, or start Spark with "
                f"spark.executor.resource.gpu.amount={need:g} (and "
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

    def _check_fraction(self, plan: Plan, need: float) -> None:
        """Validate that processes may share a GPU, which needs Spark to count its parts."""
        if plan.is_gang:
            raise SlotsError(
                f"num_gpus={need:g} was requested for each rank, but ranks that share a GPU cannot "
                "communicate through it. Pass a whole number of GPUs, or 0."
            )
        if not self._settings.executor_gpus:
            raise SlotsError(
                f"num_gpus={need:g} was requested for each process, but Spark schedules no GPUs "
                "here, so that nothing counts how many processes share one. Start Spark with "
                "spark.executor.resource.gpu.amount (see conf/), or pass a whole number."
            )

    def _executor_cores(self) -> int:
        if self._settings.is_embedded and not self._settings.conf("spark.executor.cores"):
            return self._num_tasks() * self._settings.task_cpus
        return self._settings.executor_cores

    def _num_tasks(self) -> int:
        """Return the number of tasks of the default profile that Spark runs at once."""
        return self._context.num_tasks if self._context else self._num_tasks_of_connect()

    def _num_cores(self, num_tasks: int) -> int:
        if self._context and self._settings.executor_gpus:
            return self._context.num_cores  # There may be fewer GPUs than cores.
        return num_tasks * self._settings.task_cpus

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
            return max(1, self._context.num_executors)
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
            return self._slots_to_come(cpus, settings.gpus_of(resources))
        num_tasks = self._num_tasks()
        cores = self._num_cores(num_tasks)
        place = settings.master
        if not self._context:
            place += ", as far as Spark Connect shows; SPARKDL_SLOTS sets another number"
        if not settings.needs_profile(resources):
            return Slots(num_tasks, cores, f"{num_tasks} slots of {place}")
        executors = self._num_executors()
        count = executors * (max(cores // executors, 1) // cpus)
        if (gpus := settings.gpus_of(resources)) and settings.executor_gpus:
            count = min(count, executors * _num_shares(settings.executor_gpus, gpus))
        return Slots(count, cores, f"{count} slots with {resources} of {place}")

    def _slots_to_come(self, cpus: int, gpus: float) -> Slots:
        """Return the slots that dynamic allocation may bring, as it adds executors on demand."""
        most = self._settings.conf("spark.dynamicAllocation.maxExecutors")
        max_executors = int(most or MAX_SLOTS_TO_COME)
        cores = self._executor_cores()
        per_executor = max(1, cores // cpus)
        if gpus and self._settings.executor_gpus:
            per_executor = min(per_executor, _num_shares(self._settings.executor_gpus, gpus))
        count = min(max_executors * per_executor, MAX_SLOTS_TO_COME)
        reason = f"dynamic allocation of at most {max_executors} executors"
        return Slots(count, count * max(cpus, cores // per_executor), reason, on_demand=True)

    def slots_now(self, resources: Resources) -> int:
        """Return the number of processes that fit on the present executors, at least one."""
        if self._settings.adds_executors:
            return max(1, min(self._num_tasks(), MAX_SLOTS_TO_COME))
        return max(1, min(self.slots(resources).count, MAX_SLOTS_TO_COME))

    def num_spare(self, resources: Resources, num_used: int) -> int:
        """Return the number of slots that no task uses.

        Args:
            resources: CPUs and GPUs of each process.
            num_used: the number of slots that the caller uses: Spark Connect does not tell how many
                tasks run.
        """
        num_running = self._context.num_running if self._context else num_used
        return self.slots(resources).count - num_running

    def wait_for_executors(self, size: int, num_cpus: int | None = None) -> None:
        """Wait for executors to register, in a new session or after the loss of an executor.

        Args:
            size: number of slots that are needed at once.
            num_cpus: number of CPU cores of each slot; None for Spark's default.
        """
        settings = self._settings
        if settings.is_embedded or settings.adds_executors:
            return  # Embedded Spark has its only executor; dynamic allocation adds some on demand.
        # Spark counts slots of the default size only.
        size *= math.ceil((num_cpus or settings.task_cpus) / settings.task_cpus)
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


def _num_shares(gpus: int, each: float) -> int:
    """Return the number of processes with GPUs, or with a part of one each, on an executor.

    Example:
        >>> _num_shares(2, 0.5), _num_shares(2, 0.3), _num_shares(5, 2)
        (4, 6, 2)
    """
    return gpus * int(1 / each) if each < 1 else int(gpus // each)
