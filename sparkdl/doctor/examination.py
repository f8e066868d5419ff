"""Runs on the driver. Examine the driver, start Spark, ask every executor, and judge."""

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from sparkdl import config
from sparkdl.cluster.base import Cluster
from sparkdl.cluster.plan import Resources
from sparkdl.cluster.slots import Slots
from sparkdl.cluster.spark import SparkCluster, active_session
from sparkdl.cluster.spark_context import FailedTask, failed_tasks
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.cluster.spark_settings import SparkSettings
from sparkdl.doctor.executor_checks import check_executors
from sparkdl.doctor.facts import Facts, collect_facts
from sparkdl.doctor.java import NO_JAVA, check_java
from sparkdl.doctor.report import MAX_NAMED, Check, HealthReport, State, fault, not_checked, note
from sparkdl.doctor.root_checks import check_root
from sparkdl.doctor.root_probe import (
    LIMIT_S,
    RootProbe,
    has_mark,
    leave_mark,
    probe_folder,
    probe_root,
    within,
)
from sparkdl.doctor.spark_checks import (
    check_gpus,
    check_network,
    check_num_executors,
    check_settings,
    check_slots,
    check_version,
    start_failure,
    task_failure,
)
from sparkdl.doctor.task import FACTS_SCHEMA, FactsTask
from sparkdl.doctor.version_checks import check_other_package, check_spark_home, check_versions
from sparkdl.errors import PreflightError, SlotsError
from sparkdl.files import storage
from sparkdl.runner.display.waiting import waiting_for_executors
from sparkdl.spark.versions import FOR_SPARK

# The order of the checks in a report.
SUBJECTS = (
    *("Java", "Spark", "Executors", "Slots", "Python", "Packages", "Root", "Clocks"),
    *("Open files", "Disk space", "Memory", "GPUs", "Network", "Settings"),
)
# Tasks hold their slots for so long: each executor gets one, and a task that fails at its start is
# repeated in the same slot, as no other one is free.
HOLD_S = 2.0
# With dynamic allocation, executors may have to be started first.
JOB_S = 180.0


def examine(
    root: str | os.PathLike[str] | None = None,
    *,
    spark: SparkSession | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> HealthReport:
    """Check that this host and every executor of Spark can run sparkdl.

    A Spark session that this function starts is stopped again.

    Args:
        root: the folder of the runs; by default the one that `experiment.launch` uses.
        spark: the session to check; by default the active session, or a new one.
        say: shows a line about the progress.

    Returns:
        The checks, each with the remedy of its fault: `print` the report.
    """
    versions = [*check_versions(), *check_other_package()]
    if any(check.state is State.FAULT for check in check_versions(FOR_SPARK)):
        return _without_spark(versions, root)
    runs = bool(spark or active_session())
    java = check_java()
    if not runs:
        before = [java, *check_spark_home()]
        if any(check.state is State.FAULT for check in before):
            return _without_spark([*versions, *before], root)
    say("Asking Spark ..." if runs else "Starting Spark ...")
    try:
        cluster = SparkCluster(spark)
    except Exception as exc:  # noqa: BLE001 Whatever Spark raises is what the user must know.
        failure = start_failure(f"{type(exc).__name__}: {exc}")
        return _without_spark([*versions, java, failure], root)
    if cluster.tasks_outlive_driver:
        java = not_checked(java.subject, NO_JAVA)
    try:
        checks = examine_cluster(cluster, root, say)
        return HealthReport(_by_subject([*versions, java, *checks]))
    finally:
        if not runs:
            cluster.spark.stop()


def _without_spark(checks: list[Check], root: str | os.PathLike[str] | None) -> HealthReport:
    """Return what can be said of the driver alone."""
    folder = storage.absolute(config.resolve("root", root) or "runs")
    with _place_probe(folder) as probe:
        checks += check_root(folder, probe.driver, [], ())
    checks += check_executors(collect_facts(), [], 0.0, 0.0, 1)
    why = "Spark cannot be started"
    checks += [not_checked(subject, why) for subject in ("Executors", "Slots", "Clocks", "GPUs")]
    return HealthReport(_by_subject(checks))


def examine_cluster(
    cluster: Cluster, root: str | os.PathLike[str] | None, say: Callable[[str], None]
) -> list[Check]:
    """Return the checks of a cluster that has been started, see `examine`."""
    settings = SparkSettings(cluster.conf, cluster.master)
    driver_host = cluster.conf("spark.driver.host")
    driver = collect_facts()
    with waiting_for_executors(cluster, say):
        cluster.wait_for_executors(settings.num_slots or 1)
    registered, num_expected = cluster.executors()
    checks = [
        *check_version(cluster.version, cluster.tasks_outlive_driver),
        check_num_executors(settings, registered, num_expected, driver_host),
    ]
    slots = _slots(cluster, checks)
    folder = storage.absolute(root or cluster.root())
    with _place_probe(folder) as probe:
        answers = _Answers([], 0.0, 0.0)
        if why := _cannot_ask(settings, slots, registered):
            checks.append(not_checked("Executors", why))
        else:
            say(f"Asking {slots.count} slots ...")
            answers = _ask(cluster, driver, probe, checks)
        executors = answers.executors
        unseen = _unseen(probe, executors)
        roots = list(check_root(folder, probe.driver, executors, unseen))
    checks += check_slots(settings, slots)
    checks += check_executors(driver, executors, answers.begun_s, answers.ended_s, slots.count)
    checks += roots
    detects = config.resolve("detect_gpus", None, cluster.conf)
    checks += check_gpus(settings, detects, executors)
    checks.append(check_network(settings, driver_host, executors))
    checks += check_settings(settings, os.environ)
    return _by_subject(checks)


def _by_subject(checks: Iterable[Check]) -> list[Check]:
    """Return the checks by subject; those of a subject stay in their order."""
    return sorted(checks, key=lambda check: SUBJECTS.index(check.subject))


def _slots(cluster: Cluster, checks: list[Check]) -> Slots:
    try:
        return cluster.slots(Resources())
    except SlotsError as exc:
        checks.append(note("Slots", str(exc)))
        return Slots(cluster.slots_now(Resources()), 1, "as far as Spark tells")


def _cannot_ask(settings: SparkSettings, slots: Slots, registered: int) -> str:
    """Return the reason for which a job would wait indefinitely; empty if it would not."""
    if settings.is_embedded and settings.task_gpus:
        return "Spark would wait for GPUs"
    if slots.count < 1:
        return "there is no slot"
    return "" if registered or settings.adds_executors else "no executor has registered"


# ---- the executors


@dataclass(frozen=True)
class _Answers:
    """The facts of the executors, and the time of the driver before and after it asked them."""

    executors: list[Facts]
    begun_s: float
    ended_s: float


def _ask(cluster: Cluster, driver: Facts, probe: "_Probe", checks: list[Check]) -> _Answers:
    """Run a task in each slot. An executor on which it fails is a fault."""
    task = FactsTask(
        packages=driver.packages,
        folder=probe.folder if probe.mark else None,
        driver_mark=probe.mark,
        hold_s=HOLD_S,
    )
    tag = f"sparkdl:doctor:{secrets.token_hex(4)}"
    limit = threading.Timer(JOB_S, cluster.cancel, [tag])
    limit.daemon = True
    begun_s = time.time()
    limit.start()
    try:
        rows = cluster.submit(
            task,
            FACTS_SCHEMA,
            num_tasks=cluster.slots_now(Resources()),
            resources=Resources(),
            description="sparkdl doctor",
            tags=(tag,),
        )
    except (JobFailed, PreflightError) as exc:
        checks += _job_faults(exc, driver.packages["python"], failed_tasks(cluster.spark, tag))
        return _Answers([], begun_s, time.time())
    finally:
        limit.cancel()
    ended_s = time.time()
    facts_of_tasks = [Facts.from_json(row["facts"]) for row in rows]
    # Each executor has answered from all its slots; an answer with an error counts.
    facts_of_tasks.sort(key=lambda facts: bool(facts.root and facts.root.error))
    executors = {(facts.host, facts.process): facts for facts in facts_of_tasks}
    ordered = sorted(executors.values(), key=lambda facts: (facts.host, facts.folder))
    if len(ordered) < (num_registered := cluster.executors()[0]):
        failed = failed_tasks(cluster.spark, tag)
        checks += _not_reached(len(ordered), num_registered, failed, driver.packages["python"])
    return _Answers(ordered, begun_s, ended_s)


def _job_faults(
    exc: JobFailed | PreflightError, python: str, tasks: Sequence[FailedTask]
) -> list[Check]:
    """Return the faults of a job that has failed."""
    if isinstance(exc, JobFailed) and exc.end is JobEnd.CANCELLED:
        text = f"The executors have not answered within {JOB_S:g} s."
        remedy = "Wait for other jobs of this application, or look at the queue of the cluster."
        return [fault("Executors", text, remedy)]
    reason = str(exc) if isinstance(exc, JobFailed) else str(exc.__cause__ or exc)
    return _failed_executors(tasks, python) or [task_failure(reason, python)]


def _failed_executors(tasks: Sequence[FailedTask], python: str) -> list[Check]:
    """Return a fault for each executor on which a task has failed."""
    errors = {(task.host, task.executor): task.error for task in tasks}
    return [
        task_failure(error, python, f"The executor {executor} on {host}")
        for (host, executor), error in sorted(errors.items())[:MAX_NAMED]
    ]


def _not_reached(
    num_reached: int, num_registered: int, tasks: Sequence[FailedTask], python: str
) -> list[Check]:
    """Return the faults of a job that has succeeded, but not on all executors."""
    missed = fault(
        "Executors",
        f"{num_reached} of {num_registered} executors have answered.",
        "Look for executors that fail or that other jobs occupy, in Spark's web interface.",
    )
    return _failed_executors(tasks, python) or [missed]


# ---- the root


@dataclass(frozen=True)
class _Probe:
    """The access of the driver to the root, and the file that executors look for."""

    folder: str
    driver: RootProbe
    mark: str


@contextmanager
def _place_probe(root: str) -> Iterator[_Probe]:
    """Write, read and delete files in the root, and leave nothing behind."""
    new_folders = _new_folders(root)
    folder = probe_folder(root)
    driver, mark = probe_root(folder, "driver"), ""
    try:
        if not driver.error:
            with suppress(OSError):
                mark = leave_mark(folder, "driver")
        yield _Probe(folder, driver, mark)
    finally:
        with suppress(OSError):
            within(LIMIT_S, lambda: storage.remove(folder))
            for path in new_folders:
                path.rmdir()


def _new_folders(root: str) -> list[Path]:
    """Return the local folders that a file in the root would create, the innermost one first."""
    if not storage.is_local(root):
        return []
    path = storage.local_path(root)
    try:
        folders = within(LIMIT_S, lambda: [p for p in (path, *path.parents) if not p.exists()])
    except OSError:  # The user may not enter a folder, or its file system does not answer.
        return []
    return list(folders)


def _unseen(probe: _Probe, executors: Sequence[Facts]) -> set[str]:
    """Return the names of the executors' files that the driver does not see."""
    files = [facts.root for facts in executors if facts.root and facts.root.mark]
    return {file.name for file in files if not _sees(probe.folder, file)}


def _sees(folder: str, file: RootProbe) -> bool:
    try:
        return bool(within(LIMIT_S, lambda: has_mark(folder, file.name, file.mark)))
    except OSError:
        return False
