"""Where it runs: T. What Spark executes for a trial: the control plane around a training process.

It never imports a framework. It takes its GPUs, runs the function in a fresh training process, and
yields one row that says what came out. An exception in the person's function is such a row too.
"""

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from sparkdl import storage
from sparkdl.cluster.environ import thread_counts
from sparkdl.cluster.gpus import visible_devices
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.preflight import check_executor, spare_collector, start_of
from sparkdl.cluster.process import End, TrainingProcess, describe_end
from sparkdl.cluster.program import Program
from sparkdl.runs.layout import RunPaths, TrialPaths
from sparkdl.runs.redact import mask_params, mask_text

__all__ = ["OUTCOME_SCHEMA", "TrialTask"]

OUTCOME_SCHEMA = "outcome string, exception binary"

MIRROR_S = 5.0
TAIL_LINES = 20


@dataclass(frozen=True)
class TrialTask:
    """Runs one trial; Spark calls it in a Python worker with the batches of its partition.

    Attributes:
        plan: what the trial needs.
        program: the person's function.
        run_id, run_path, application: which run it belongs to, where that is kept, Spark's id.
        number, params, seed: which trial, and what the function is called with.
        metric: the name under which a plain returned number stands.
        cores: the CPU cores that are this process's share.
        attempt: how often the trial was submitted before; Spark's own attempts count on top.
        versions: what the executor must have, see `preflight.check_executor`.
    """

    plan: Plan
    program: Program
    run_id: str
    run_path: str
    application: str
    number: int
    params: Mapping[str, Any] = field(repr=False)
    seed: int
    metric: str | None
    cores: int
    attempt: int
    versions: Mapping[str, str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the trial and yield its outcome as one row of `OUTCOME_SCHEMA`."""
        for _ in batches:
            pass  # An iterator left unread costs Spark this Python worker.
        spare_collector()
        outcome, exception = self._run()
        yield pa.RecordBatch.from_pydict(
            {
                "outcome": pa.array([json.dumps(outcome)]),
                "exception": pa.array([exception], "binary"),
            }
        )

    def _run(self) -> tuple[dict[str, Any], bytes | None]:
        context = TaskContext.get()
        attempt = self.attempt + (context.attemptNumber() if context else 0)
        paths = RunPaths(self.run_path)
        trial = paths.trial(self.number)
        if problem := self._problem(paths):
            return {"preflight": problem, "attempt": attempt}, None
        self._begin(trial, attempt)
        resources = context.resources() if context else {}
        wanted = "gpu" in resources and self.plan.resources.num_gpus != 0
        gpus = resources["gpu"].addresses if wanted else []
        with _local_folder(trial) as folder:
            end = self._train(folder, gpus)
            said = self._say(end, TrialPaths(str(folder)), trial)
        if "error" in said:
            storage.write(trial.error, said["error"])
        storage.write(trial.outputs, json.dumps(said.get("outputs", {}), indent=1))
        return {**said, "attempt": attempt}, (end.outcome or {}).get("exception")

    def _problem(self, paths: RunPaths) -> str | None:
        imports, framework = self.program.imports, self.plan.framework
        return check_executor(self.run_id, paths, self.versions, imports, framework)

    def _begin(self, trial: TrialPaths, attempt: int) -> None:
        if attempt:
            # A lost attempt's process may still write: it keeps its own, moved files.
            for url in (trial.log, trial.metrics, trial.error, trial.artifacts, trial.tensorboard):
                name = url.rpartition("/")[2]
                storage.rename(url, storage.join(trial.superseded(attempt - 1), name))
        kept = {"params": mask_params(self.params, self.plan.env.values()), "seed": self.seed}
        storage.write(trial.params, json.dumps(kept, indent=1))
        who = {"attempt": attempt, "host": socket.gethostname(), "pid": os.getpid()}
        storage.write(trial.attempt(attempt), json.dumps(who))

    def _train(self, folder: Path, gpus: list[str]) -> End:
        plan, program = self.plan, self.program
        environ = {
            **thread_counts(max(1, min(self.cores, len(os.sched_getaffinity(0)))), plan.env),
            **visible_devices(gpus, plan.detect_gpus and plan.resources.num_gpus != 0),
            "SPARKDL_RUN": self.run_id,
        }
        context = {
            "run": self.run_id,
            "trial": self.number,
            "params": dict(self.params),
            "seed": self.seed,
            "folder": str(folder),
        }
        payload = {
            "function": program.function,
            "modules": dict(program.modules),
            "path": list(sys.path),
            "cwd": os.getcwd(),
            "environ": environ,
            "context": context,
            "metric": self.metric,
            "secrets": list(plan.env.values()),
        }
        start = start_of(plan, program, self.application)
        scratch = None if storage.is_local(self.run_path) else folder
        with TrainingProcess(start, payload, folder / "log.txt", scratch) as process:
            return process.wait(plan.trial_timeout_s)

    def _say(self, end: End, local: TrialPaths, trial: TrialPaths) -> dict[str, Any]:
        secrets = tuple(self.plan.env.values())
        said = {k: v for k, v in (end.outcome or {}).items() if k != "exception"}
        if end.outcome is None:
            said = {"error": describe_end(end, self.plan.trial_timeout_s)}
            said["traceback"] = f"The last lines of its log:\n{_tail(local.log)}"
        if "error" in said:
            text = f"{said['error']}\n\n{said.pop('traceback')}\n\nIts log: {trial.log}\n"
            said["error"] = mask_text(text, secrets)
        if "invalid" in said:
            said["invalid"] = mask_text(said["invalid"], secrets)
        if "outputs" in said:
            said["outputs"] = mask_params(said["outputs"], secrets)
        usage = {
            "starting_s": end.starting_s,
            "running_s": end.running_s,
            "cpu_s": end.cpu_s,
            "peak_memory_mb": end.peak_memory_mb,
        }
        said["usage"] = {name: round(value, 4) for name, value in usage.items()}
        return {**said, "reported": _last_reported(local.metrics)}


def _tail(log: str) -> str:
    path = storage.local_path(log)
    size = path.stat().st_size
    data = storage.read(log, max(0, size - (1 << 16)))
    lines = data.decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:]) or "(nothing was printed)"


def _last_reported(metrics: str) -> dict[str, float]:
    last: dict[str, float] = {}
    try:
        lines = storage.read(metrics).split(b"\n")[:-1]
    except FileNotFoundError:
        return last
    for line in lines:
        last |= json.loads(line)["metrics"]
    return last


class _local_folder:
    """The folder that a training process writes into: the trial's own, or one mirrored to it."""

    def __init__(self, trial: TrialPaths) -> None:
        self._mirror: storage.Mirror | None = None
        if storage.is_local(trial.folder):
            self.folder = storage.local_path(trial.folder)
            return
        self.folder = Path(tempfile.mkdtemp(prefix="sparkdl-"))
        self._mirror = storage.Mirror(self.folder, trial.folder)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_in_step, daemon=True)

    def _keep_in_step(self) -> None:
        while not self._stop.wait(MIRROR_S):
            with contextlib.suppress(OSError):  # The store fails for a moment: the next time.
                if self._mirror:
                    self._mirror.sync()

    def __enter__(self) -> Path:
        if self._mirror:
            self._thread.start()
        return self.folder

    def __exit__(self, *_: object) -> None:
        if self._mirror:
            self._stop.set()
            self._thread.join()
            self._mirror.close()
