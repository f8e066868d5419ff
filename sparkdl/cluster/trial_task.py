"""Runs in a Spark task.

What Spark executes for a trial: the control plane around a training process.

It never imports a framework. It takes its GPUs, runs the function in a fresh training process, and
yields one row that says what came out. An exception in the person's function is such a row too.
"""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from sparkdl import checkpoints, storage
from sparkdl.cluster.environ import thread_counts
from sparkdl.cluster.gpus.assignment import assigned_gpus
from sparkdl.cluster.gpus.locks import DevicesTakenError
from sparkdl.cluster.outcome import End, describe_end, failure_of
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.preflight import check_executor, spare_collector, start_of
from sparkdl.cluster.process.training_process import Start, TrainingProcess
from sparkdl.cluster.process.trial_folder import last_reported, local_folder
from sparkdl.cluster.program.packaging import Program
from sparkdl.data.dataframe.protocol import Feed
from sparkdl.data.dataframe.sender import RowSender
from sparkdl.reporter import ASKS, ORDERS, TIMELINE
from sparkdl.runs.layout import RunPaths, TrialPaths
from sparkdl.runs.redact import mask_params, mask_text
from sparkdl.runs.states import Failure

__all__ = ["OUTCOME_SCHEMA", "PER_ATTEMPT", "TrialTask", "counted", "fed", "usage_of"]

OUTCOME_SCHEMA = "outcome string, exception binary"

TAIL_LINES = 20

# What an attempt leaves in the trial's folder, beside its logs and metrics.
PER_ATTEMPT = frozenset(
    ("error.txt", "artifacts", "tensorboard", "ranks", "data.jsonl", ASKS, ORDERS, TIMELINE)
)


@dataclass(frozen=True)
class TrialTask:
    """Runs one trial; Spark calls it in a Python worker with the batches of its partition.

    Attributes:
        plan: what the trial needs.
        program: the person's function.
        run_id, run_path, application: which run it belongs to, where that is kept, Spark's id.
        number, params, seed: which trial, and what the function is called with.
        metric, direction: which number counts, and whether the larger is the better.
        keep_checkpoints: which of its checkpoints are kept.
        cores: the CPU cores that are this process's share.
        attempt: how often the trial was submitted before; Spark's own attempts count on top.
        versions: what the executor must have, see `preflight.check_executor`.
        feed: the datasets whose rows are in the partition; None if it has none of the person's.
        init_from: the folder of a trial, and the number of its checkpoint to begin with.
        others: the names of more numbers that count.
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
    direction: str
    keep_checkpoints: str | int
    cores: int
    attempt: int
    versions: Mapping[str, str]
    feed: Feed | None = None
    init_from: tuple[str, int] | None = None
    others: tuple[str, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the trial and yield its outcome as one row of `OUTCOME_SCHEMA`."""
        if self.feed is None:
            exhaust(batches)
        spare_collector()
        outcome, exception = self._run(batches)
        yield pa.RecordBatch.from_pydict(
            {
                "outcome": pa.array([json.dumps(outcome)]),
                "exception": pa.array([exception], "binary"),
            }
        )

    @property
    def start(self) -> Start:
        """How its training processes are started."""
        return start_of(self.plan, self.program, self.application)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> tuple[dict[str, Any], bytes | None]:
        context = TaskContext.get()
        paths = RunPaths(self.run_path)
        trial = paths.trial(self.number)
        # Spark counts from 0 again when it repeats a whole stage: no attempt takes another's place.
        attempt = self.attempt + (context.attemptNumber() if context else 0)
        attempt = max(attempt, trial.num_attempts())
        if problem := self._problem(paths):
            return {"preflight": problem, "attempt": attempt}, None
        self._supersede(trial, attempt)
        self._begin(trial, attempt, {"host": socket.gethostname()})
        with local_folder(trial) as folder:
            said: dict[str, Any]
            feeder = None
            try:
                with (
                    assigned_gpus(self.plan, self.run_id, context) as visible,
                    self._feeding(batches, 0) as feeder,
                ):
                    who = {"attempt": attempt, "checkpoint": self._initial(folder)}
                    with self._process(folder, "log.txt", visible, who, fed(feeder)) as process:
                        end = process.wait(self.plan.trial_timeout_s)
                    end = counted(end, feeder)
            except (DevicesTakenError, ValueError) as exc:
                end = End(0, {}, 0.0, 0.0)
                said = {"error": f"{exc}\n", "failure": str(Failure.GPU), "usage": usage_of(end)}
            else:
                said = self._say(end, storage.join(str(folder), "log.txt"), trial.log)
            said["reported"] = last_reported(storage.join(str(folder), "metrics.jsonl"))
        # One that was given up may wake when another has taken its place.
        if attempt == trial.num_attempts() - 1:
            if "error" in said:
                storage.write(trial.error, said["error"])
            storage.write(trial.outputs, json.dumps(said.get("outputs", {}), indent=1))
        said["attempt"] = attempt
        if feeder and feeder.is_cut_short:
            # Spark computes all rows of a slow DataFrame before it looks at what a task says.
            storage.write(trial.outcome(attempt), json.dumps(said))
        return said, (end.outcome or {}).get("exception")

    def _initial(self, folder: Path) -> str | None:
        """The local path of the checkpoint that a trial without one of its own begins with."""
        return self.init_from and checkpoints.fetch(*self.init_from, str(folder))

    def _problem(self, paths: RunPaths) -> str | None:
        imports, framework = self.program.imports, self.plan.framework
        return check_executor(self.run_id, paths, self.versions, imports, framework)

    def _supersede(
        self, trial: TrialPaths, attempt: int, what: frozenset[str] = PER_ATTEMPT
    ) -> None:
        """Move away what a lost attempt wrote: its process may still be writing it."""
        if not attempt:
            return
        for name in storage.names(trial.folder):
            if name.startswith(("log", "metrics")) or name in what:
                old = storage.join(trial.folder, name)
                storage.rename(old, storage.join(trial.superseded(attempt - 1), name))

    def _begin(self, trial: TrialPaths, attempt: int, who: Mapping[str, Any]) -> None:
        kept = {"params": mask_params(self.params, self.plan.env.values()), "seed": self.seed}
        storage.write(trial.params, json.dumps(kept, indent=1))
        who = {"attempt": attempt, "pid": os.getpid(), **who}
        storage.write(trial.attempt(attempt), json.dumps(who))

    def _process(
        self,
        folder: Path,
        log: str,
        environ: Mapping[str, str],
        who: Mapping[str, Any],
        more: Mapping[str, socket.socket],
        served: bool = False,
    ) -> TrainingProcess:
        """Start a training process of this trial.

        Args:
            folder: the local folder that it writes into; `log` is the file for its output there.
            environ: its GPUs, and what lets it find its peers.
            who: the fields of its `Context` that are not the same for all processes of a trial.
            more: what it gets rows from, and what it joins a ring with, see `Context`.
            served: it is to run TensorFlow's server instead of the person's function.
        """
        plan, program = self.plan, self.program
        cores = max(1, min(self.cores, len(os.sched_getaffinity(0))))
        payload = {
            "function": None if served else program.function,
            "modules": dict(program.modules),
            "path": list(sys.path),
            "cwd": os.getcwd(),
            "environ": {
                # The fork server is shared by the host's executors, and has the first one's.
                **os.environ,
                **plan.env,
                **thread_counts(cores, plan.env),
                **environ,
                "SPARKDL_RUN": self.run_id,
            },
            "context": {
                "kind": plan.kind,
                "run": self.run_id,
                "trial": self.number,
                "params": dict(self.params),
                "seed": self.seed,
                "folder": str(folder),
                "url": RunPaths(self.run_path).trial(self.number).folder,
                "keep_checkpoints": self.keep_checkpoints,
                "metric": self.metric,
                "direction": self.direction,
                "timeline": plan.timeline,
                **who,
            },
            "metrics": [self.metric, *self.others],
            "secrets": list(plan.env.values()),
        }
        scratch = None if storage.is_local(self.run_path) else folder
        timeout_s = plan.start_timeout_s if plan.is_gang else None
        return TrainingProcess(self.start, payload, folder / log, scratch, timeout_s, more)

    def _feeding(
        self, batches: Iterable[pa.RecordBatch], rank: int
    ) -> "contextlib.AbstractContextManager[RowSender | None]":
        """What streams the partition to the training process; None where it reads none."""
        if self.feed and rank in self.feed.readers:
            return RowSender(self.feed, batches)
        exhaust(batches)
        return contextlib.nullcontext()

    def _say(self, end: End, local_log: str, log: str) -> dict[str, Any]:
        secrets = tuple(self.plan.env.values())
        said = {k: v for k, v in (end.outcome or {}).items() if k not in ("exception", "spent")}
        if end.outcome is None:
            said = {"error": end.stopped or describe_end(end, self.plan.trial_timeout_s)}
            said["traceback"] = f"The last lines of its log:\n{_tail(local_log)}"
        if "error" in said:
            said["failure"] = str(failure_of(end))
            text = f"{said['error']}\n\n{said.pop('traceback')}\n\nIts log: {log}\n"
            said["error"] = mask_text(text, secrets)
        if "invalid" in said:
            said["invalid"] = mask_text(said["invalid"], secrets)
        if "outputs" in said:
            said["outputs"] = mask_params(said["outputs"], secrets)
        return {**said, "usage": usage_of(end)}


def exhaust(batches: Iterable[pa.RecordBatch]) -> None:
    """Read a partition to its end: one that is left unread costs Spark this Python worker."""
    for _ in batches:
        pass


def fed(feeder: RowSender | None) -> dict[str, socket.socket]:
    """The channel of a training process's rows, if it gets any."""
    return {"feed": feeder.process_end} if feeder else {}


def counted(end: End, feeder: RowSender | None) -> End:
    """The end, a failure if the process has not got the rows that it was sent."""
    if end.is_failure or not feeder or not feeder.problem:
        return end
    return replace(end, outcome={"error": feeder.problem, "traceback": ""})


def usage_of(end: End) -> dict[str, float]:
    """What a training process used, as the journal keeps it."""
    used = {
        "starting_s": end.starting_s,
        "running_s": end.running_s,
        "cpu_s": end.cpu_s,
        "peak_memory_mb": end.peak_memory_mb,
    }
    spent = (end.outcome or {}).get("spent", {})
    return {name: round(value, 4) for name, value in {**used, **spent}.items()}


def _tail(log: str) -> str:
    path = storage.local_path(log)
    size = path.stat().st_size
    data = storage.read(log, max(0, size - (1 << 16)))
    lines = data.decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:]) or "(nothing was printed)"
