"""Runs on the driver. The Spark session as a cluster: slots, jobs, cancellation."""

import contextlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparkdl import config
from sparkdl.cluster import worker_daemon
from sparkdl.cluster.plan import Plan, Resources
from sparkdl.cluster.program.packaging import Program
from sparkdl.cluster.slots import Slots
from sparkdl.cluster.spark_broadcasts import SparkBroadcasts
from sparkdl.cluster.spark_context import ClassicContext, conf_before_start, is_classic_running
from sparkdl.cluster.spark_errors import job_failed
from sparkdl.cluster.spark_explained import user_of_connect
from sparkdl.cluster.spark_settings import SparkSettings, check_speculation
from sparkdl.cluster.spark_slots import SlotCounter
from sparkdl.errors import FunctionError, PreflightError
from sparkdl.host.optional_packages import install_command
from sparkdl.spark.capabilities import collect_stage, has_profiles
from sparkdl.spark.connect import is_of_connect
from sparkdl.spark.python import map_in_arrow, use_driver_python
from sparkdl.spark.versions import check_packages, check_session, check_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark Connect takes messages of 128 MiB, in which the function is the largest part.
MAX_CONNECT_BYTES = 127 << 20
# Spark's Java side on the driver needs a program up to three times while it sends the program.
HEAP_SHARE = 3

# Job descriptions are kept in Spark's event log and shown in its web interface.
MAX_DESCRIPTION = 200
# The properties of the caller's thread by which its jobs are scheduled, grouped and cancelled.
_DESCRIPTION = "spark.job.description"
_INHERITED = (
    "spark.scheduler.pool",
    "spark.jobGroup.id",
    "spark.job.interruptOnCancel",
    "spark.job.tags",
)


class SparkCluster:
    """A Spark session, as an implementation of `sparkdl.cluster.base.Cluster`.

    Args:
        spark: the session; None takes the active session, or starts one as configured. On a
            laptop this is embedded Spark on all cores.

    Raises:
        ConfigError: if Spark, Java, Python, PySpark or Arrow has a version that is not supported.
    """

    def __init__(self, spark: "SparkSession | None" = None) -> None:
        check_packages()
        self.spark = spark or active_session() or _new_session()
        check_session(self.spark)
        self._profiles: dict[Resources, Any] = {}
        self._context = ClassicContext.of(self.spark)
        # Reading a value from Spark takes some milliseconds, and the values do not change.
        self._conf: dict[str, str | None] = {}
        if self._context:
            self._conf.update(self._context.conf)
        self._settings = SparkSettings(self.conf, self.master)
        self._counter = SlotCounter(self.spark, self._settings, self._context)
        self._broadcasts = SparkBroadcasts(self._context)
        self._labels = self._labels_of_thread(_INHERITED)
        use_driver_python(self.spark)

    @property
    def version(self) -> str:
        """The version of Spark."""
        return str(self.spark.version)

    def conf(self, key: str) -> str | None:
        """Return a value of the Spark configuration, or None."""
        if not self._context and key not in self._conf:
            self._conf[key] = self.spark.conf.get(key, None)
        return self._conf.get(key)

    @property
    def master(self) -> str:
        """The master URL of Spark, such as `local[*]`."""
        return self._context.master if self._context else (self.conf("spark.master") or "connect")

    @property
    def is_local(self) -> bool:
        """True if all executors run on this host (`local` and `local-cluster` masters)."""
        return self._settings.is_local

    @property
    def application(self) -> str:
        """The id of the Spark application."""
        return self._context.application if self._context else str(self.conf("spark.app.id"))

    @property
    def tasks_outlive_driver(self) -> bool:
        """True for Spark Connect, whose server goes on without its client."""
        return self._context is None

    def root(self) -> str:
        """Return the default folder of runs.

        The folder is the setting `root` if there is one, `runs` on a local or mounted disk, and a
        folder of the user on the default filesystem of the cluster.
        """
        if root := config.resolve("root", None, self.conf):
            return str(root)
        if self.is_local:
            return "runs"
        if self._context:
            filesystem = self._context.filesystem.rstrip("/")
        else:  # Spark Connect shows what Spark's own settings say, but not `core-site.xml`.
            filesystem = (self.conf("spark.hadoop.fs.defaultFS") or "file:").rstrip("/")
        if filesystem.startswith("file:"):
            return "runs"
        user = self._context.user if self._context else user_of_connect(self.spark)
        return f"{filesystem}/user/{user}/sparkdl"

    def check(self, plan: Plan, program: Program | None = None) -> None:
        """Validate that Spark can run the processes of a plan.

        Raises:
            SlotsError: if a process asks for more GPUs or CPUs than an executor has.
            PreflightError: if Spark may start a second copy of a running process.
            FunctionError: if the program is larger than what Spark can send.
        """
        self._counter.check(plan)
        self._check_profile(plan.resources)
        check_speculation(plan, self.conf)
        if program:
            self._check_size(program)

    def _check_profile(self, resources: Resources) -> None:
        needs_profile = self._settings.needs_profile(resources) and not self._settings.is_embedded
        if needs_profile and not has_profiles(self.spark):
            raise PreflightError(
                f"{resources} were requested for each process, which differ from the tasks of "
                f"this Spark (spark.task.cpus={self._settings.task_cpus}, "
                f"spark.task.resource.gpu.amount={self._settings.task_gpus:g}). Spark Connect "
                f"does so from Spark 4.0 on, and this is Spark {self.version}. Start its server "
                "with these settings for all tasks, or use a newer Spark."
            )

    def _check_size(self, program: Program) -> None:
        limit = MAX_CONNECT_BYTES
        reason = "Spark Connect takes messages of 128 MiB"
        if self._context:
            heap = self._context.heap_bytes
            limit = heap // HEAP_SHARE
            reason = f"spark.driver.memory is {heap >> 20} MiB"
        if program.num_bytes > limit:
            raise FunctionError(
                f"the training function and its modules have {program.num_bytes >> 20} MiB"
                f"{program.where}, and Spark can send {limit >> 20} MiB, because {reason}. Write "
                "the data to a file that all executors see, and read the file inside the function."
            )

    @property
    def most_gpus(self) -> int | None:
        """The number of GPUs of an executor; None if Spark schedules no GPUs."""
        return self._settings.executor_gpus or None

    def executors(self) -> tuple[int, int]:
        """Return the number of executors that have registered, and the number to be expected."""
        if not self._context or self._settings.is_embedded:
            return 1, 1
        return self._context.num_executors, self._settings.num_executors or 1

    @property
    def executor_ids(self) -> frozenset[str] | None:
        """The ids of the present executors; None if Spark does not tell, as on Spark Connect."""
        if not self._context or self._settings.is_embedded:
            return None
        try:
            return self._context.executor_ids
        except Exception:  # noqa: BLE001 A Spark that has ended says so at the next job.
            return None

    @property
    def leaving(self) -> frozenset[str]:
        """The ids of the executors that Spark is decommissioning."""
        if not self._context or self.conf("spark.decommission.enabled") != "true":
            return frozenset()
        return self._context.decommissioned

    def slots(self, resources: Resources, override: int | None = None) -> Slots:
        """Return the number of processes with these resources that Spark can run at once."""
        return self._counter.slots(resources, override)

    def slots_now(self, resources: Resources) -> int:
        """Return the number of processes that fit on the present executors, at least one."""
        return self._counter.slots_now(resources)

    def num_spare(self, resources: Resources, num_used: int) -> int:
        """Return the number of slots that no task uses, see `SlotCounter.num_spare`."""
        return self._counter.num_spare(resources, num_used)

    def num_waiting(self, *tags: str) -> int:
        """Return the number of tasks that wait for slots, of all jobs with none of the tags."""
        return self._context.num_waiting(*tags) if self._context else 0

    def wait_for_executors(self, size: int, num_cpus: int | None = None) -> None:
        """Wait for executors to register, see `SlotCounter.wait_for_executors`."""
        self._counter.wait_for_executors(size, num_cpus)

    def enforces(self, resources: Resources) -> bool:
        """Return True if Spark itself never runs more such processes than it has slots."""
        return not (self._settings.needs_profile(resources) and self._settings.is_embedded)

    def _profile(self, resources: Resources) -> Any:
        from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

        settings = self._settings
        if not settings.needs_profile(resources) or settings.is_embedded:
            return None  # Embedded Spark has one profile only; `Concurrency` starts fewer trials.
        if resources in self._profiles:
            # Spark reserves executors for each profile object: use the same object again.
            return self._profiles[resources]
        requests = TaskResourceRequests().cpus(resources.num_cpus or settings.task_cpus)
        if gpus := settings.gpus_of(resources):
            requests = requests.resource("gpu", gpus)
        self._profiles[resources] = ResourceProfileBuilder().require(requests).build
        return self._profiles[resources]

    def share(self, value: object) -> Callable[[], None]:
        """Send an object to each executor once; see `sparkdl.cluster.base.Cluster.share`."""
        return self._broadcasts.share(value)

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

        See `sparkdl.cluster.base.Cluster.submit`.

        Raises:
            JobFailed: if the job was cancelled, lost its executor too often, or raised.
        """
        try:
            with (
                self._labelled(description, tags),
                self._broadcasts.broadcast_task(task) as sent_task,
            ):
                numbers = self.spark.range(num_tasks, numPartitions=num_tasks)
                profile = self._profile(resources)

                def run(partitions: "DataFrame") -> list[Any]:
                    return collect_stage(
                        partitions, sent_task, schema, barrier=barrier, profile=profile
                    )

                # Spark starts no task for a DataFrame that it knows to be empty.
                return run(rows or numbers) or run(map_in_arrow(numbers, _no_rows, "id long"))
        except Exception as exc:
            raise job_failed(exc, has_ended=self._has_ended()) from exc

    def _has_ended(self) -> bool:
        """Return True if the Spark application has been stopped, or is about to stop.

        The tasks of a Spark that stops fail in any way: their workers, for one, are killed.
        """
        if not self._context:
            return False  # The server of Spark Connect says so in its errors.
        try:
            return self._context.has_ended
        except Exception:  # noqa: BLE001 The error of the job itself tells more.
            return False

    @contextlib.contextmanager
    def _labelled(self, description: str, tags: tuple[str, ...]) -> Iterator[None]:
        """Give the jobs of the block a description and tags, and the labels of the verb's caller.

        In classic Spark, tags of the session do not reach the jobs of a collect; tags of the
        context do.
        """
        before = self._labels_of_thread((*_INHERITED, _DESCRIPTION))
        add_tag = self._context.add_tag if self._context else self.spark.addTag
        self._set_labels(self._labels)
        try:
            if self._context:
                begin = description[: 4 * MAX_DESCRIPTION]
                self._context.describe(textwrap.shorten(begin, MAX_DESCRIPTION, placeholder=" ..."))
            for tag in tags:
                add_tag(tag)
            yield
        finally:
            self._set_labels(before)

    def _labels_of_thread(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the properties of this thread; for Spark Connect its tags."""
        if not self._context:
            return {"tags": set(self.spark.getTags())}
        return self._context.properties(keys)

    def _set_labels(self, labels: Mapping[str, Any]) -> None:
        if not self._context:
            self.spark.clearTags()
            for tag in labels["tags"]:
                self.spark.addTag(tag)
            return
        self._context.set_properties(labels)

    def cancel(self, tag: str) -> None:
        """End all jobs that carry the tag; their training processes end with their tasks."""
        if self._context:
            self._context.cancel(tag)
        else:
            self.spark.interruptTag(tag)


def _no_rows(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield nothing; Spark cannot know so in advance and starts the tasks."""
    for _ in batches:
        pass
    yield from ()


def active_session() -> "SparkSession | None":
    """Return the session of this thread, else that of this process; None without a session.

    Spark itself knows a session only in the thread that has created it.

    Raises:
        PreflightError: if the session is one of Spark Connect, whose packages are not installed.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    try:
        if active := SparkSession.getActiveSession():
            return active
    except ImportError as exc:  # `SPARK_REMOTE` is set.
        raise PreflightError(
            f"Spark Connect needs a package that is not installed: {exc}. Install the packages of "
            f"its clients with: {install_command('connect')}"
        ) from exc
    if is_classic_running():
        return SparkSession.builder.getOrCreate()
    if is_remote():
        with contextlib.suppress(PySparkRuntimeError):  # There is none in other threads either.
            return SparkSession.active()
    return None


def num_slots(waits: bool = False) -> int:
    """Return the number of tasks that Spark can run at once.

    Args:
        waits: wait for the executors of a session that has just begun, see `wait_for_executors`.
    """
    cluster = SparkCluster()
    if waits:
        cluster.wait_for_executors(1)
    return cluster.slots(Resources()).count


def shares_environment(spark: "SparkSession | None") -> bool:
    """Return True if executors run the Python of this process, and so have its packages.

    Those of a cluster, or of a server of Spark Connect, have packages of their own.

    Args:
        spark: the session; None for the active one. Embedded Spark is started if there is none.
    """
    from pyspark.sql.utils import is_remote

    if (session := spark or active_session()) is None:
        return not is_remote()
    return not is_of_connect(session) and str(session.conf.get("spark.master")).startswith("local")


def _new_session() -> "SparkSession":
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    # Executors of embedded Spark must run the Python of the driver, not the first one in PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark's progress bar of stages would be drawn over the progress display of the run.
    builder = SparkSession.builder.config("spark.ui.showConsoleProgress", "false")
    if not is_remote():
        check_start()
        for key, value in worker_daemon.settings(conf_before_start()).items():
            builder = builder.config(key, value)
    return builder.appName("sparkdl").getOrCreate()
