"""Runs on the driver. Check on every executor, before the first trial, that it can run a plan.

The task of the check is in `sparkdl.cluster.preflight`, which Spark tasks import: they load no
modules of the driver.
"""

import json
import logging
import platform
import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

from sparkdl.cluster.base import Cluster
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.preflight import (
    REPORT_SCHEMA,
    PreflightTask,
    different_builds,
    raise_for_problems,
    versions_of,
)
from sparkdl.cluster.program.packaging import Program
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.cluster.start_conditions import start_of
from sparkdl.errors import PreflightError
from sparkdl.files import storage
from sparkdl.files.polling import Outages
from sparkdl.runner.job_threads import JobThreads
from sparkdl.runs.machine import installed, together
from sparkdl.runs.opening import OpenRun

# Imports of a cold executor take some ten seconds.
WAIT_S = 60.0

# Seconds between two looks at the orders of users meanwhile.
LOOK_S = 0.2

# A job that was cancelled ends soon.
CANCEL_S = 10.0

_logger = logging.getLogger("sparkdl.runner")


def preflight(
    opened: OpenRun, cluster: Cluster, plan: Plan, program: Program, look: Callable[[], bool]
) -> list[dict[str, Any]]:
    """Check that every executor can run the plan, and let it import the framework in the meantime.

    Args:
        opened: the run directory.
        cluster: the cluster.
        plan: the plan of the run.
        program: the user's program.
        look: carries out the orders of users; returns False if the run was ordered to end.

    Returns:
        The hardware and the packages of the executors, see `runs.machine.together`. The list is
        empty if the run was ordered to end, or if the job has not ended after `WAIT_S`, as when it
        waits behind the trials of other runs: each trial checks its executor again.

    Raises:
        PreflightError: if at least one executor cannot run the plan.
    """
    count = cluster.slots_now(plan.resources)
    task = PreflightTask(
        run_id=opened.run.id,
        run_path=opened.paths.folder,
        versions=versions_of(cluster.version, program.imports),
        imports=program.imports,
        framework=plan.framework,
        start=start_of(plan, program, cluster.application, opened.run.id, opened.seed),
        count=count,
        packages={"python": platform.python_version(), **installed()},
    )
    try:
        rows = _rows_within(
            WAIT_S,
            look,
            cluster,
            task,
            REPORT_SCHEMA,
            num_tasks=count,
            resources=plan.resources,
            description=f"{opened.run.id} preflight",
            tags=(f"sparkdl:{opened.run.id}", f"sparkdl:{opened.run.id}:preflight"),
        )
    except JobFailed as failed:
        if failed.end is JobEnd.SPARK_ENDED:
            return []  # The job of the first trial says so, and ends the run as one can be resumed.
        raise PreflightError(f"Spark could not run the preflight job: {failed}") from failed
    finally:
        with Outages("remove the files of the preflight").tolerated():
            storage.remove(opened.paths.preflight)
    executors = [json.loads(row["executor"]) for row in rows]
    builds = different_builds(executors, task.packages) if plan.is_gang else None
    raise_for_problems([*(row["problem"] for row in rows), builds])
    return together(executors)


def _rows_within(
    limit_s: float, look: Callable[[], bool], cluster: Cluster, *job: Any, **options: Any
) -> list[Any]:
    """Return the rows of a job, none if the job had to be cancelled.

    That is after `limit_s` seconds, or when `look` returns False.

    Raises:
        JobFailed: if the job failed.
    """
    if not look():
        return []
    threads = JobThreads("sparkdl-preflight")
    rows = threads.submit(cluster.submit, *job, **options)
    threads.close()
    deadline = time.monotonic() + limit_s
    while (goes_on := look()) and time.monotonic() < deadline:
        if wait([rows], LOOK_S).done:
            return rows.result()
    if goes_on:
        _logger.info("the executors were not checked within %g s; trials check them", limit_s)
    deadline = time.monotonic() + CANCEL_S
    while not rows.done() and time.monotonic() < deadline:
        _cancel(cluster, options["tags"][-1])  # Again, as the job may not have begun the last time.
        wait([rows], LOOK_S)
    return rows.result() if rows.done() and not rows.exception() else []


def _cancel(cluster: Cluster, tag: str) -> None:
    try:
        cluster.cancel(tag)
    except Exception as exc:  # noqa: BLE001 A Spark that has ended lets the job itself say so.
        _logger.debug("Spark cannot cancel %s: %r", tag, exc)
