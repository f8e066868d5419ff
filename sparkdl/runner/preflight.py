"""Runs on the driver. Check on every executor, before the first trial, that it can run a plan.

The task of the check is in `sparkdl.cluster.preflight`, which Spark tasks import: they load no
modules of the driver.
"""

import json
import platform
from typing import Any

from sparkdl import storage
from sparkdl.cluster.base import Cluster
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.preflight import (
    REPORT_SCHEMA,
    PreflightTask,
    raise_for_problems,
    start_of,
)
from sparkdl.cluster.program.packaging import Program
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.errors import PreflightError
from sparkdl.polling import Outages
from sparkdl.runs import provenance
from sparkdl.runs.machine import installed, together
from sparkdl.runs.opening import OpenRun

__all__ = ["preflight"]


def preflight(
    opened: OpenRun, cluster: Cluster, plan: Plan, program: Program
) -> list[dict[str, Any]]:
    """Check that every executor can run the plan, and let it import the framework in the meantime.

    Args:
        opened: the run directory.
        cluster: the cluster.
        plan: the plan of the run.
        program: the user's program.

    Returns:
        The hardware and the packages of the executors, see `runs.machine.together`.

    Raises:
        PreflightError: if at least one executor cannot run the plan.
    """
    count = cluster.slots_now(plan.resources)
    task = PreflightTask(
        run_id=opened.run.id,
        run_path=opened.paths.folder,
        versions=provenance.versions(),
        imports=program.imports,
        framework=plan.framework,
        start=start_of(plan, program, cluster.application),
        count=count,
        packages={"python": platform.python_version(), **installed()},
    )
    try:
        rows = cluster.submit(
            task,
            REPORT_SCHEMA,
            num_tasks=count,
            resources=plan.resources,
            description=f"{opened.run.id} preflight",
            tags=(f"sparkdl:{opened.run.id}",),
        )
    except JobFailed as failed:
        if failed.end is JobEnd.SPARK_ENDED:
            return []  # The job of the first trial says so, and ends the run as one can be resumed.
        raise PreflightError(f"Spark could not run the preflight job: {failed}") from failed
    finally:
        with Outages("remove the files of the preflight").tolerated():
            storage.remove(opened.paths.preflight)
    raise_for_problems(row["problem"] for row in rows)
    return together(json.loads(row["executor"]) for row in rows)
