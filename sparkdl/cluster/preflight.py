"""Runs on the driver, and in the Spark tasks that it asks.

Can this cluster run this plan? Known before any trial.
"""

import gc
import importlib.util
import json
import os
import resource
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from sparkdl import storage
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.process.training_process import Start, warm
from sparkdl.cluster.program.packaging import Program, preloadable
from sparkdl.distribute.strategies import uses_tf_keras
from sparkdl.distribute.tested_versions import untested
from sparkdl.errors import PreflightError
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.provenance import versions as installed_versions

__all__ = [
    "REPORT_SCHEMA",
    "PreflightTask",
    "check_executor",
    "check_pair",
    "raise_for_problems",
    "spare_collector",
    "start_of",
]

REPORT_SCHEMA = "problem string"

# How long tasks hold their slots for the others, so that each executor gets one of them.
MEET_S = 2.0


def check_executor(
    run_id: str,
    paths: RunPaths,
    versions: Mapping[str, str],
    imports: Iterable[str],
    framework: str | None,
) -> str | None:
    """What keeps this executor from running trials of a run, naming the host; None if nothing.

    Args:
        run_id: the id that `run.json` in the run directory must hold.
        paths: where the driver has made the run directory.
        versions: what the driver has installed, see `runs.record.versions`.
        imports: the modules that the program needs.
        framework: the framework that it uses, if any.
    """
    host = socket.gethostname()
    try:
        seen = json.loads(storage.read(paths.run))["id"]
    except Exception as exc:  # noqa: BLE001 Each store's library raises its own.
        return (
            f"executor on host {host}, working in {os.getcwd()}, does not see the run directory "
            f"{paths.folder} ({type(exc).__name__}: {exc}). Set root= (or SPARKDL_ROOT) to a "
            "directory that driver and executors share: NFS, HDFS or an object store."
        )
    if seen != run_id:
        return f"executor on host {host} sees another run, {seen}, in {paths.folder}"
    if framework and (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        return (
            f"executor on host {host} limits Python's address space to {limit >> 20} MiB, in which "
            f"{framework} cannot be loaded. Unset spark.executor.pyspark.memory."
        )
    here = installed_versions()
    wrong = [
        f"{k} {here.get(k, 'absent')} (driver: {v})"
        for k, v in versions.items()
        if here.get(k) != v
    ]
    if wrong:
        return (
            f"executor on host {host} has {', '.join(wrong)}. Install the driver's versions there."
        )
    missing = sorted({n.partition(".")[0] for n in imports} - _importable(imports))
    if missing:
        return (
            f"executor on host {host} lacks the module(s) {', '.join(missing)}, which the program "
            "imports. Install them on the executors, or ship an environment with --archives."
        )
    return None


def check_pair(plan: Plan, allow_untested: bool) -> None:
    """Refuse a framework that was not tested with more than one process, before anything starts.

    Raises:
        PreflightError: naming the versions found and those that were tested.
    """
    if plan.framework != "tensorflow" or plan.size == 1 or allow_untested:
        return
    if problem := untested(installed_versions(), legacy=uses_tf_keras(plan.env)):
        raise PreflightError(problem)


def _importable(imports: Iterable[str]) -> set[str]:
    tops = {name.partition(".")[0] for name in imports}
    return {top for top in tops if importlib.util.find_spec(top) is not None}


def start_of(plan: Plan, program: Program, application: str) -> Start:
    """How the plan's training processes are started on an executor."""
    return Start(
        application=application,
        framework=plan.framework,
        preload=preloadable(program.imports, plan.framework) if plan.fork_server else (),
        env=plan.env,
        shared=plan.fork_server,
    )


def spare_collector() -> None:
    """Keep what this Python worker has imported out of its garbage collections.

    Spark's worker collects after every task: with our imports some 30 ms, for which the next task
    on that worker waits.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


@dataclass(frozen=True)
class PreflightTask:
    """One task of the preflight job. Checks its executor, then holds its slot until all started.

    Attributes:
        plan, program: what will run; its framework is imported meanwhile.
        run_id, run_path: the run directory that it must see.
        application: Spark's application id.
        versions: see `check_executor`.
        count: how many tasks the job has.
    """

    plan: Plan
    program: Program
    run_id: str
    run_path: str
    application: str
    versions: Mapping[str, str]
    count: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row of `REPORT_SCHEMA`: the problem, or null."""
        ids = [i for batch in batches for i in batch.column(0).to_pylist()]
        paths = RunPaths(self.run_path)
        problem = check_executor(
            self.run_id, paths, self.versions, self.program.imports, self.plan.framework
        )
        if problem is None and ids:
            spare_collector()
            warm(start_of(self.plan, self.program, self.application))
            self._meet(paths.preflight, ids[0])
        yield pa.RecordBatch.from_pydict({"problem": pa.array([problem], "string")})

    def _meet(self, folder: str, number: int) -> None:
        if self.count == 1 or not storage.is_local(folder):
            return  # A store of objects is too slow for this; each trial checks its executor again.
        storage.write(storage.join(folder, number), b"")
        deadline = time.monotonic() + MEET_S
        while len(storage.names(folder)) < self.count and time.monotonic() < deadline:
            time.sleep(0.01)


def raise_for_problems(problems: Iterable[str | None]) -> None:
    """Raise what the executors reported, each problem once.

    Raises:
        PreflightError: at least one executor cannot run the plan.
    """
    found = sorted({problem for problem in problems if problem})
    if found:
        raise PreflightError(
            f"{len(found)} problem(s) on the executors, so no trial was started:\n- "
            + "\n- ".join(found)
        )
