"""Runs on the driver, and in Spark tasks on all executors.

Check, before the first trial, that every executor can run a plan.
"""

import functools
import gc
import importlib.util
import json
import os
import resource
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from sparkdl import storage
from sparkdl.cluster.arrow_row import arrow_row
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.process.training_process import Start, warm
from sparkdl.cluster.program.packaging import Program, preloadable
from sparkdl.distribute.strategies import uses_tf_keras
from sparkdl.distribute.tested_versions import untested
from sparkdl.errors import PreflightError
from sparkdl.os_processes import user_name
from sparkdl.polling import RETRY_S, retry
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.machine import describe
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

# `executor` has the facts of `runs.machine.describe` as JSON.
REPORT_SCHEMA = "problem string, executor string"

# Tasks hold their slots for this long, so that each executor gets one of them.
MEET_S = 2.0

# The user waits for the check before the first trial, and may have named a wrong store.
PATIENCE_S = 30.0


def check_executor(
    run_id: str,
    paths: RunPaths,
    versions: Mapping[str, str],
    imports: Iterable[str],
    framework: str | None,
    writes: bool = False,
    patience_s: float = RETRY_S,
) -> str | None:
    """Return the reason for which this executor cannot run a run's trials; None if it can.

    Args:
        run_id: the id that `run.json` in the run directory must hold.
        paths: the run directory, as the driver made it.
        versions: the versions on the driver, see `runs.provenance.versions`.
        imports: the modules that the program imports.
        framework: the framework of the program, if any.
        writes: also write a file in the run directory, and remove it.
        patience_s: seconds for which a store that fails is tried again. A missing file and refused
            access are problems at once.
    """
    problem = (
        _cannot_read(run_id, paths, patience_s)
        or (_cannot_write(paths, patience_s) if writes else None)
        or _limits_memory(framework)
        or _differs(versions)
        or _lacks(imports)
    )
    return f"executor on host {socket.gethostname()}{problem}" if problem else None


def _cannot_read(run_id: str, paths: RunPaths, patience_s: float) -> str | None:
    activity = "read the description of the run"
    try:
        data = retry(lambda: storage.read(paths.run), activity, patience_s)
        seen = json.loads(data)["id"]
    except Exception as exc:  # noqa: BLE001 Each store's library raises its own.
        if isinstance(exc, PermissionError) and storage.is_local(paths.run):
            return (
                f" may not read the run directory {paths.folder} as user {user_name()} ({exc}). "
                "Its owner opens run directories to others with SPARKDL_PERMISSIONS=2770 (for the "
                "group of the root) or 777."
            )
        return (
            f", working in {os.getcwd()}, does not see the run directory "
            f"{paths.folder} ({type(exc).__name__}: {exc}). Set root= (or SPARKDL_ROOT) to a "
            "directory that driver and executors share: NFS, HDFS or an object store."
        )
    return None if seen == run_id else f" sees another run, {seen}, in {paths.folder}"


def _cannot_write(paths: RunPaths, patience_s: float) -> str | None:
    probe = storage.join(paths.folder, f"probe-{uuid.uuid4().hex}")
    activity = "write a file in the run directory"
    try:
        retry(lambda: storage.write(probe, b""), activity, patience_s)
        retry(lambda: storage.remove(probe), activity, patience_s)
    except Exception as exc:  # noqa: BLE001 Each store's library raises its own.
        remedy = "Give the executors credentials with which they may write and delete there"
        if storage.is_local(probe):
            remedy = f"Let user {user_name()} write there"
        return (
            f" cannot write to the run directory {paths.folder} as user {user_name()} "
            f"({type(exc).__name__}: {exc}). {remedy}, or set root= (or SPARKDL_ROOT) to a "
            "directory to which driver and executors can write."
        )
    return None


def _limits_memory(framework: str | None) -> str | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if framework is None or limit == resource.RLIM_INFINITY:
        return None
    return (
        f" limits Python's address space to {limit >> 20} MiB, in which {framework} cannot be "
        "loaded. Unset spark.executor.pyspark.memory."
    )


def _differs(versions: Mapping[str, str]) -> str | None:
    installed = installed_versions()
    wrong = [
        f"{name} {installed.get(name, 'absent')} (driver: {version})"
        for name, version in versions.items()
        if installed.get(name) != version
    ]
    return f" has {', '.join(wrong)}. Install the driver's versions there." if wrong else None


def _lacks(imports: Iterable[str]) -> str | None:
    missing = sorted({n.partition(".")[0] for n in imports} - _importable(imports))
    if not missing:
        return None
    return (
        f" lacks the module(s) {', '.join(missing)}, which the program imports. Install them on "
        "the executors, or ship an environment with --archives."
    )


def check_pair(plan: Plan, allow_untested: bool) -> None:
    """Refuse versions of TensorFlow and Keras that were not tested with several processes.

    Raises:
        PreflightError: if the versions are untested; the message names the tested ones.
    """
    if plan.framework != "tensorflow" or plan.size == 1 or allow_untested:
        return
    if problem := untested(installed_versions(), legacy=uses_tf_keras(plan.env)):
        raise PreflightError(problem)


def _importable(imports: Iterable[str]) -> set[str]:
    tops = {name.partition(".")[0] for name in imports}
    return {top for top in tops if importlib.util.find_spec(top) is not None}


def start_of(plan: Plan, program: Program, application: str) -> Start:
    """Return the conditions under which the training processes of a plan are forked."""
    # A server that has imported Keras has fixed its backend, for all that it forks.
    sets_backend = bool(program.backend_variables(plan.env))
    # What each rank of a gang imports before its function is called.
    imports = program.imports | ({"sparkdl.distribute.strategies"} if plan.is_gang else set())
    preload = preloadable(imports, plan.framework, sets_backend)
    return Start(
        application=application,
        framework=None if sets_backend else plan.framework,
        preload=preload if plan.fork_server else (),
        env=plan.env,
        shared=plan.fork_server,
    )


@functools.cache
def spare_collector() -> None:
    """Exclude, at the first call, the imports of this Python worker from its garbage collections.

    Spark's worker collects garbage after every task. With our imports a collection takes some
    30 ms, for which the next task waits.
    """
    gc.collect()
    gc.freeze()


@dataclass(frozen=True, kw_only=True)
class PreflightTask:
    """A task of the preflight job: check the executor, and hold the slot until all tasks run.

    Attributes:
        run_id: the id of the run.
        run_path: the run directory, in which the executor must be able to write.
        versions: the versions on the driver, see `check_executor`.
        imports: the modules that the program imports.
        framework: the framework of the program, if any.
        start: the conditions of the forks; the modules to preload are imported in the meantime.
        count: the number of tasks of the job.
        packages: the packages of the driver, see `runs.machine.describe`.
    """

    run_id: str
    run_path: str
    versions: Mapping[str, str]
    imports: frozenset[str]
    framework: str | None
    start: Start
    count: int
    packages: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row of `REPORT_SCHEMA`: the problem, or null, and what the executor has."""
        ids = [i for batch in batches for i in batch.column(0).to_pylist()]
        paths = RunPaths(self.run_path)
        problem = check_executor(
            self.run_id,
            paths,
            self.versions,
            self.imports,
            self.framework,
            writes=True,
            patience_s=PATIENCE_S,
        )
        if problem is None and ids:
            spare_collector()
            warm(self.start)
            self._meet(paths.preflight, ids[0])
        yield arrow_row({"problem": problem, "executor": json.dumps(describe(self.packages))})

    def _meet(self, folder: str, number: int) -> None:
        if self.count == 1 or not storage.is_local(folder):
            return  # An object store is too slow; each trial checks its executor again.
        storage.write(storage.join(folder, number), b"")
        deadline = time.monotonic() + MEET_S
        while len(storage.list_names(folder)) < self.count and time.monotonic() < deadline:
            time.sleep(0.01)


def raise_for_problems(problems: Iterable[str | None]) -> None:
    """Raise the problems that the executors reported, each one once.

    Raises:
        PreflightError: if at least one executor cannot run the plan.
    """
    reported = sorted({problem for problem in problems if problem})
    if reported:
        raise PreflightError(
            f"{len(reported)} problem(s) on the executors, so no trial was started:\n- "
            + "\n- ".join(reported)
        )
