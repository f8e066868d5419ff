"""Runs on the driver (pure). The settings of Spark that decide on executors, and what they say."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from sparkdl.cluster.plan import Plan, Resources
from sparkdl.errors import PreflightError

# The units of Spark's times, in seconds.
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class SparkSettings:
    """The settings of a Spark application that decide on its executors.

    Attributes:
        conf: looks up a key of the Spark configuration.
        master: the master URL.

    Example:
        >>> settings = SparkSettings({"spark.task.cpus": "2"}.get, "local-cluster[2,4,1024]")
        >>> settings.num_executors, settings.executor_cores, settings.num_slots
        (2, 4, 4)
    """

    conf: Callable[[str], str | None]
    master: str

    @property
    def is_local(self) -> bool:
        """True if all executors run on this host (`local` and `local-cluster` masters)."""
        return self.master.startswith("local")

    @property
    def is_embedded(self) -> bool:
        """True if the driver's own Java process runs the tasks (`local` masters)."""
        return self.is_local and self._local_cluster is None

    @property
    def adds_executors(self) -> bool:
        """True if Spark adds executors while tasks wait (dynamic allocation)."""
        return self.conf("spark.dynamicAllocation.enabled") == "true"

    @property
    def task_cpus(self) -> int:
        """The number of CPU cores of a task."""
        return int(self.conf("spark.task.cpus") or 1)

    @property
    def task_gpus(self) -> float:
        """The number of GPUs of a task; less than 1 for tasks that share a GPU."""
        return float(self.conf("spark.task.resource.gpu.amount") or 0)

    @property
    def executor_gpus(self) -> int:
        """The number of GPUs of an executor; embedded Spark schedules none."""
        amount = self.conf("spark.executor.resource.gpu.amount")
        return 0 if self.is_embedded else int(amount or 0)

    @property
    def executor_cores(self) -> int:
        """The number of CPU cores of an executor; 0 if the settings do not tell."""
        if cores := self.conf("spark.executor.cores"):
            return int(cores)
        if self._local_cluster:
            return int(self._local_cluster[2])
        return 1 if self._has_default_executors else 0

    @property
    def num_executors(self) -> int | None:
        """The number of executors that will register; None if the settings do not tell."""
        if self._local_cluster:
            return int(self._local_cluster[1])
        if instances := self.conf("spark.executor.instances"):
            return int(instances)
        return 2 if self._has_default_executors else None

    @property
    def num_slots(self) -> int | None:
        """The number of tasks at once on all executors; None if the settings do not tell."""
        if self.num_executors and self.executor_cores:
            return self.num_executors * (self.executor_cores // self.task_cpus)
        if cores := self.conf("spark.cores.max"):
            return int(cores) // self.task_cpus
        if self.is_embedded and (match := re.match(r"local(?:\[(\d+)|$)", self.master)):
            return int(match[1] or 1) // self.task_cpus
        return None

    @property
    def _local_cluster(self) -> re.Match[str] | None:
        return re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", self.master)

    @property
    def _has_default_executors(self) -> bool:
        """True for YARN and Kubernetes, whose defaults are 2 executors of 1 core."""
        return self.master.startswith(("yarn", "k8s"))

    def needs_profile(self, resources: Resources) -> bool:
        """Return True if processes take other resources than tasks take by default."""
        cpus = resources.num_cpus or self.task_cpus
        return (cpus, self.gpus_of(resources)) != (self.task_cpus, self.task_gpus)

    def gpus_of(self, resources: Resources) -> float:
        """Return the number of GPUs to request from Spark for each task.

        A process without GPUs takes an ordinary slot, and its GPUs are hidden from it. Where Spark
        schedules no GPUs, the locks of `sparkdl.cluster.gpus` assign them.
        """
        return (resources.num_gpus if self.executor_gpus else 0) or self.task_gpus


def check_speculation(plan: Plan, conf: Callable[[str], str | None]) -> None:
    """Validate that Spark starts no second copy of a running trial or rank.

    Spark never copies the task of a barrier stage. It copies a job's only task if a task may be
    copied after a fixed time.

    Raises:
        PreflightError: if Spark may copy the tasks of this plan.

    Example:
        >>> from sparkdl.cluster.plan import Role
        >>> plan = Plan(kind="launch", roles=(Role(name="worker", count=1),))
        >>> check_speculation(plan, {"spark.speculation": "true"}.get)
        >>> threshold = {"spark.speculation.task.duration.threshold": "30min"}
        >>> check_speculation(plan, {"spark.speculation": "true", **threshold}.get)
        Traceback (most recent call last):
        sparkdl.errors.PreflightError: spark.speculation is true and \
spark.speculation.task.duration.threshold is 30min, so Spark would train a trial that takes longer \
a second time, beside the first. Start Spark with spark.speculation=false.
    """
    if conf("spark.speculation") != "true" or (plan.is_gang and not plan.elastic):
        return
    threshold = conf("spark.speculation.task.duration.threshold")
    if plan.elastic:
        raise PreflightError(
            "spark.speculation is true, so Spark would start slow ranks of an elastic gang a "
            "second time, beside the first. Start Spark with spark.speculation=false."
        )
    if threshold:
        raise PreflightError(
            "spark.speculation is true and spark.speculation.task.duration.threshold is "
            f"{threshold}, so Spark would train a trial that takes longer a second time, beside "
            "the first. Start Spark with spark.speculation=false."
        )


def excludes_executors(conf: Callable[[str], str | None]) -> bool:
    """Return True if Spark starts a task that an executor refuses on another executor.

    Args:
        conf: looks up a key of the Spark configuration.
    """
    keys = ("enabled", "taskAndStage.enabled")
    return any(conf(f"spark.excludeOnFailure.{key}") == "true" for key in keys)


def duration_s(text: str) -> float:
    """Return a time in the form of Spark's settings as seconds; without a unit, it is in ms.

    Raises:
        PreflightError: if the text is no such time.

    Example:
        >>> duration_s("90min"), duration_s("500")
        (5400.0, 0.5)
    """
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    unit = match and _UNITS.get(match[2] or "ms")
    if not (match and unit):
        raise PreflightError(
            f"{text!r} is no time of Spark; expected a whole number with one of the units "
            f"{', '.join(_UNITS)}, such as '60s' or '1h'."
        )
    return float(match[1]) * unit


def check_growth(plan: Plan, has_context: bool) -> None:
    """Validate that Spark tells into which slots a gang could grow.

    Args:
        plan: the plan.
        has_context: False for Spark Connect.

    Raises:
        PreflightError: if a gang is to grow, and Spark does not tell.
    """
    if plan.grows and not has_context:
        least, most = plan.size, len(plan.members)
        raise PreflightError(
            f"num_workers=({least}, {most}) needs a Spark that tells which slots are idle, and "
            f"Spark Connect does not. Pass num_workers={least}, or use a SparkSession of the "
            "driver's own process."
        )
