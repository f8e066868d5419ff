"""Runs on the driver. The interface of a cluster, as far as the runner needs it.

`sparkdl.cluster.spark.SparkCluster` implements the interface over a Spark session. Tests and
benchmarks implement it without Spark.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from sparkdl.cluster.plan import Plan, Resources
from sparkdl.cluster.program.packaging import Program
from sparkdl.cluster.slots import Slots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Cluster(Protocol):
    """A set of executors that run jobs; each job has a number of tasks, each task a slot."""

    @property
    def spark(self) -> "SparkSession | None":
        """The session that reads `data=`; None for a cluster without Spark."""

    @property
    def version(self) -> str:
        """The version of the software that schedules the tasks."""
        ...

    @property
    def master(self) -> str:
        """The URL of the cluster, such as `local[*]`."""
        ...

    @property
    def application(self) -> str:
        """The id of the application whose executors run the tasks."""
        ...

    def conf(self, key: str) -> str | None:
        """Return a value of the cluster's configuration, or None."""

    @property
    def tasks_outlive_driver(self) -> bool:
        """True if running tasks go on when the driver has gone, unless they end by themselves."""
        ...

    def root(self) -> str:
        """Return the default folder of runs, a path or an fsspec URL."""
        ...

    def check(self, plan: Plan, program: Program | None = None) -> None:
        """Validate that the cluster can run the processes of a plan.

        Args:
            plan: the plan of a run.
            program: the user's program, whose size may be limited.

        Raises:
            SlotsError: if a process asks for more GPUs or CPUs than an executor has.
            PreflightError: if the cluster may start a second copy of a running process.
            FunctionError: if the program is larger than what the cluster can send.
        """

    def wait_for_executors(self, size: int, num_cpus: int | None = None) -> None:
        """Wait until `size` tasks fit at once, or until no more executors are to be expected.

        Args:
            size: number of slots that are needed at once.
            num_cpus: number of CPU cores of each slot; None for Spark's default.
        """

    def executors(self) -> tuple[int, int]:
        """Return the number of executors that have registered, and the number to be expected."""
        ...

    @property
    def executor_ids(self) -> frozenset[str] | None:
        """The ids of the executors that the application has now; None if they are not known."""
        ...

    @property
    def leaving(self) -> frozenset[str]:
        """The ids of the executors that are about to end."""
        ...

    def slots(self, resources: Resources, override: int | None = None) -> Slots:
        """Return the number of processes with these resources that can run at once.

        Args:
            resources: CPUs and GPUs of each process.
            override: the number of slots that the user has set, which replaces the counted one.
        """
        ...

    def slots_now(self, resources: Resources) -> int:
        """Return the number of processes that fit on the present executors, at least one."""
        ...

    def num_spare(self, resources: Resources, num_used: int) -> int:
        """Return the number of slots that no task uses.

        Args:
            resources: CPUs and GPUs of each process.
            num_used: the number of slots that the caller uses, for a cluster that does not tell.
        """
        ...

    def num_waiting(self, *tags: str) -> int:
        """Return the number of tasks that wait for slots, of all jobs that have none of some tags.

        Args:
            *tags: the tags.
        """
        ...

    def enforces(self, resources: Resources) -> bool:
        """Return True if the cluster itself never runs more such processes than it has slots."""
        ...

    def share(self, value: object) -> Callable[[], None]:
        """Send an object to each executor once, instead of with each task that contains it.

        Returns:
            The function that removes the copies, for the time when no task contains the object.
        """
        ...

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
        rows: "DataFrame | None" = None,
    ) -> list[Any]:
        """Run a job, wait for its end and return the rows that its tasks yielded.

        Args:
            task: the function that each task calls with an iterator of Arrow batches.
            schema: the columns of the yielded rows, as a Spark DDL string.
            num_tasks: number of tasks.
            resources: CPUs and GPUs of each task.
            description: a sentence for the cluster's user interface.
            tags: the tags by which `cancel` finds the job.
            barrier: start all tasks at once or none.
            rows: a DataFrame with a partition for each task; by default a task gets its number.

        Raises:
            JobFailed: if the job was cancelled, lost its executor too often, or raised.
        """
        ...

    def cancel(self, tag: str) -> None:
        """End all jobs that carry the tag; their training processes end with their tasks."""
