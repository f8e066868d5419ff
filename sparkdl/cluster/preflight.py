"""Runs on the driver, and in Spark tasks on all executors.

Check, before the first trial, that every executor can run a plan.
"""

import importlib.util
import json
import os
import re
import resource
import socket
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkdl.cluster.arrow_row import arrow_row
from sparkdl.cluster.process.server_connection import Start, warm
from sparkdl.cluster.python_worker import spare_collector
from sparkdl.errors import PreflightError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.files.polling import RETRY_S, retry
from sparkdl.host.optional_packages import install_commands
from sparkdl.host.os_processes import user_name
from sparkdl.host.supported_versions import installed as installed_version
from sparkdl.runs import provenance
from sparkdl.runs.machine import ABSENT, describe
from sparkdl.runs.machine import installed as installed_packages
from sparkdl.spark.python import chosen_python
from sparkdl.spark.versions import release_of

if TYPE_CHECKING:
    import pyarrow as pa

# `executor` has the facts of `runs.machine.describe` as JSON.
REPORT_SCHEMA = "problem string, executor string"

# Packages that executors must have in the driver's version if the program imports them. The build
# may be another one, such as CUDA's beside that of CPUs.
PROGRAM_PACKAGES = ("accelerate", "jax", "lightning", "peft", "torch", "transformers")

# The packages whose builds the ranks of a gang with GPUs must share, as NCCL connects them.
_BUILDS = re.compile(r"torch|jaxlib|nvidia-nccl-cu\d+")

# Before the path of the Python of an executor: the driver then says what has chosen this Python.
_PYTHON = "its Python is"

# Tasks hold their slots for this long, so that each executor gets one of them.
MEET_S = 2.0

# The user waits for the check before the first trial, and may have named a wrong store.
PATIENCE_S = 30.0


def versions_of(spark: str, imports: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions that every executor must have.

    Args:
        spark: the version of Spark. Its PySpark is that of the executors, also where the driver is
            a client of Spark Connect with another one.
        imports: the modules that the program imports.
    """
    tops = {name.partition(".")[0] for name in imports}
    used = [name for name in PROGRAM_PACKAGES if name in tops]
    here = installed_packages() if used else {}
    public = {name: here[name].partition("+")[0] for name in used if name in here}
    return {**provenance.versions(), **public, "pyspark": release_of(spark)}


def different_builds(
    executors: Iterable[Mapping[str, Any]], driver: Mapping[str, str]
) -> str | None:
    """Return the problem of executors with GPUs whose builds of a framework differ, if they do.

    Args:
        executors: the facts of the executors, see `runs.machine.describe`.
        driver: the packages of the driver.
    """
    hosts: dict[str, set[str]] = {}
    for executor in executors:
        packages = {**driver, **executor["packages"]}
        names = sorted(name for name in packages if _BUILDS.fullmatch(name))
        builds = ", ".join(f"{n} {packages[n]}" for n in names if packages[n] != ABSENT)
        if executor["gpus"]:
            hosts.setdefault(builds, set()).add(executor["host"])
    if len(hosts) < 2:
        return None
    found = "; ".join(
        f"{builds or 'none'} on {', '.join(sorted(on))}" for builds, on in hosts.items()
    )
    return (
        f"executors have different builds of what connects their GPUs: {found}. Install the same "
        "build on all of them."
    )


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
        versions: the versions that the executor must have, see `versions_of`.
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
        id_in_file = json.loads(data)["id"]
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
    return None if id_in_file == run_id else f" sees another run, {id_in_file}, in {paths.folder}"


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
    installed = versions_of(installed_version("pyspark") or "", versions)
    wrong = [
        f"{name} {installed.get(name, 'absent')} (driver: {version})"
        for name, version in versions.items()
        if installed.get(name) != version
    ]
    if not wrong:
        return None
    how = install_commands(name for name in versions if name not in installed)
    return f" has {', '.join(wrong)}. Install the driver's versions there{how}."


def _lacks(imports: Iterable[str]) -> str | None:
    missing = sorted({n.partition(".")[0] for n in imports} - _importable(imports))
    if not missing:
        return None
    return (
        f" lacks the module(s) {', '.join(missing)}, which the program imports; {_PYTHON} "
        f"{sys.executable}. Install them there{install_commands(missing)}, or ship an environment "
        "with --archives."
    )


def _importable(imports: Iterable[str]) -> set[str]:
    tops = {name.partition(".")[0] for name in imports}
    return {top for top in tops if importlib.util.find_spec(top) is not None}


@dataclass(frozen=True, kw_only=True)
class PreflightTask:
    """A task of the preflight job: check the executor, and hold the slot until all tasks run.

    Attributes:
        run_id: the id of the run.
        run_path: the run directory, in which the executor must be able to write.
        versions: the versions that the executor must have, see `versions_of`.
        imports: the modules that the program imports.
        framework: the framework of the program, if any.
        start: the conditions of the forks; the modules to preload are imported in the meantime.
        count: the number of tasks of the job.
        packages: the packages of the driver, see `runs.machine.describe`.
    """

    run_id: str
    run_path: str
    versions: Mapping[str, str]
    imports: tuple[str, ...]
    framework: str | None
    start: Start
    count: int
    packages: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
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
    different = sorted({problem for problem in problems if problem})
    if different:
        choice = f"\n{chosen_python()}" if any(_PYTHON in problem for problem in different) else ""
        raise PreflightError(
            f"{len(different)} problem(s) on the executors, so no trial was started:\n- "
            + "\n- ".join(different)
            + choice
        )
