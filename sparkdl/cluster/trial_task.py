"""Runs in a Spark task. Run one trial: the control plane around a training process.

The task never imports a framework. It takes its GPUs, runs the function in a fresh training
process, and yields one row with the outcome. An exception in the user's function is an outcome too.
"""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl import checkpoints
from sparkdl.cluster.driver_watch import DriverWatch
from sparkdl.cluster.environ import shared_gpu_variables, thread_counts, without_credentials
from sparkdl.cluster.executor_name import this_executor
from sparkdl.cluster.feeding import exhaust, feed_sockets, feeding, reserved_copy
from sparkdl.cluster.gpus.assignment import AssignedGpus, assigned_gpus, spark_gpus
from sparkdl.cluster.outcome import (
    EMBEDDED,
    Outcome,
    ProcessExit,
    Status,
    classify_failure,
    describe_exit,
)
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.preflight import check_executor
from sparkdl.cluster.process.server_connection import Start
from sparkdl.cluster.process.shared_rows import SharedRows
from sparkdl.cluster.process.training_process import TrainingProcess
from sparkdl.cluster.process.trial_folder import local_folder
from sparkdl.cluster.program.packaging import Program
from sparkdl.cluster.python_worker import spare_collector
from sparkdl.cluster.repeated_process import is_repeated, without_preload
from sparkdl.cluster.spark_errors import AVOIDED
from sparkdl.cluster.task_outcome import (
    failure_of_task,
    files_in,
    log_tail,
    outcome_row,
    with_feed_error,
    with_files,
    with_note,
    with_reported,
    without_secrets,
)
from sparkdl.cluster.trial_spec import RunRef, TrialSpec
from sparkdl.data.dataframe.protocol import Feed
from sparkdl.data.dataframe.sender import RowSender
from sparkdl.files import attempts, storage
from sparkdl.files.jsonl import to_json
from sparkdl.files.layout import (
    LOG,
    METRICS,
    PER_ATTEMPT,
    WORK,
    RunPaths,
    TrialPaths,
    is_of_attempt,
)
from sparkdl.files.polling import RETRY_S, retry
from sparkdl.host.os_processes import user_name
from sparkdl.runs.states import Failure
from sparkdl.secrets.masks import mask_outputs, mask_params, mask_text, secrets_in
from sparkdl.training.reporter import make_files

if TYPE_CHECKING:
    import pyarrow as pa

OUTCOME_SCHEMA = "outcome string"


class AvoidedExecutorError(RuntimeError):
    """The trial must not run on this executor, which is excluded or suspected."""


@dataclass(frozen=True, kw_only=True)
class TrialTask:
    """Run one trial. Spark calls the task in a Python worker with the batches of its partition.

    Attributes:
        plan: the plan of the run.
        program: the user's function.
        run: the run.
        trial: the trial.
        start: the conditions under which its training processes are forked.
        cores: the number of CPU cores of each training process.
        at_once: the number of trials that run at once, and share the requests to a store.
        feed: the datasets whose rows are in the partition; None without `data=`.
    """

    plan: Plan
    program: Program
    run: RunRef
    trial: TrialSpec
    start: Start
    cores: int
    at_once: int = 1
    feed: Feed | None = None

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Run the trial and yield its outcome as one row of `OUTCOME_SCHEMA`.

        Raises:
            AvoidedExecutorError: if the trial must not run on this executor.
            NoCopyError: if this executor lacks the copy of the rows that the trial was to read.
        """
        self._avoid(this_executor())
        if self.feed is None or not self.feed.is_in_partition:
            exhaust(batches)
        spare_collector()
        with reserved_copy(self.feed) as copy:
            yield outcome_row(self._run(batches, copy))

    @property
    def paths(self) -> TrialPaths:
        """The files of the trial."""
        return RunPaths(self.run.path).trial(self.trial.number)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that are masked in all that this trial stores or shows."""
        return (*self.plan.secrets, *secrets_in(self.trial.params))

    def _avoid(self, executor: str | None) -> None:
        if executor in self.trial.avoid:
            # Spark starts the task again, on another executor with spark.excludeOnFailure.
            where = f"executor {executor} on host {socket.gethostname()}"
            raise AvoidedExecutorError(f"{where} {AVOIDED}")

    def _run(self, batches: "Iterable[pa.RecordBatch]", copy: SharedRows | None = None) -> Outcome:
        attempt = self.trial.attempt
        if problem := self.check():
            return Outcome(status=Status.REFUSED, error=problem, attempt=attempt)
        try:
            attempt = self._claim()
            return self._run_attempt(batches, copy, attempt)
        except attempts.SupersededError:
            raise  # Spark expects nothing from this task any more.
        except Exception as exc:  # noqa: BLE001 Spark would tell less of it, and repeat the task.
            return replace(failure_of_task(exc), attempt=attempt)

    def _claim(self) -> int:
        """Take the next attempt number, move away the files of a lost attempt, show the start."""
        from pyspark import TaskContext

        context = TaskContext.get()
        task_id = context.taskAttemptId() if context else 0
        attempt = attempts.claim(
            self.paths.folder, self.run.application, self.trial.attempt, task_id
        )
        self._move_away(attempt)
        self.begin(attempt, {"host": socket.gethostname(), "executor_id": this_executor()})
        return attempt

    def _run_attempt(
        self, batches: "Iterable[pa.RecordBatch]", copy: SharedRows | None, attempt: int
    ) -> Outcome:
        from pyspark import TaskContext

        addresses = spark_gpus(TaskContext.get())
        files = local_folder(self.paths, attempt, at_once=self.at_once)
        with files as folder:
            with (
                assigned_gpus(self.plan, self.run.id, addresses) as gpus,
                feeding(self.feed, batches, 0, copy) as feeder,
            ):
                outcome = self._train(folder, attempt, gpus, feeder, files.watch)
            outcome = replace(outcome, attempt=attempt, host=socket.gethostname())
            if feeder and feeder.has_copy:
                outcome = replace(outcome, copy_on=this_executor() or EMBEDDED)
            outcome = with_reported(outcome, folder)
        attempts.check(self.paths.folder, attempt)
        outcome = with_note(outcome, files.note)
        results = {self.paths.outputs: to_json(dict(outcome.outputs), indent=1)}
        # If Spark fails to compute rows, the driver writes Spark's error instead.
        if outcome.status is Status.FAILED and not (feeder and feeder.is_ended_by_spark):
            results = {self.paths.error: outcome.error or "", **results}
        if feeder and feeder.is_cut_short:
            # Spark computes all rows of a slow DataFrame before it passes on the task's row.
            results[self.paths.outcome(attempt)] = outcome.without_exception().to_json()
        return with_files(outcome, results)

    def _train(
        self,
        folder: Path,
        attempt: int,
        gpus: AssignedGpus,
        feeder: RowSender | None,
        watch: Callable[[], str | None],
    ) -> Outcome:
        me = {"attempt": attempt, "checkpoint": self.initial_checkpoint(folder)}
        timeout_s, driver_watch = self.plan.trial_timeout_s, self.driver_watch()
        task, note = self, None
        while True:
            with task.start_process(folder, LOG, gpus, me, feed_sockets(feeder)) as process:
                end = process.wait(
                    timeout_s, lambda: watch() or driver_watch(), self._start_timeout_s
                )
            if not is_repeated(end, task.start, feeder, folder / METRICS):
                break
            start, note = without_preload(end, task.start, folder / LOG)
            task = replace(self, start=start)
        if end.outcome is None and not end.unkillable:
            with contextlib.suppress(OSError):  # The process may have been committing.
                checkpoints.sweep(self.paths.folder, attempt, has_ended=True)
        outcome = self.outcome_of(with_feed_error(end, feeder), folder, LOG)
        is_lost = driver_watch.has_gone and end.outcome is None
        outcome = replace(outcome, failure=Failure.LOST) if is_lost else outcome
        return with_note(outcome, note)

    def driver_watch(self) -> DriverWatch:
        """Return what tells when the driver has gone; Spark itself may end the task before."""
        silence_s = self.plan.client_silence_s
        return DriverWatch(RunPaths(self.run.path), self.run.owner, silence_s)

    @property
    def _start_timeout_s(self) -> float:
        """Seconds until the function must be called: imports take long, but do not hang."""
        return max(self.plan.trial_timeout_s or 0.0, self.plan.start_timeout_s)

    def initial_checkpoint(self, folder: Path) -> str | None:
        """Return the local path of the checkpoint that a new trial begins with, if any."""
        return self.trial.init_from and checkpoints.fetch(*self.trial.init_from, str(folder))

    def check(self) -> str | None:
        """Return the reason for which this executor cannot run the trial; None if it can."""
        return check_executor(
            self.run.id,
            RunPaths(self.run.path),
            self.run.versions,
            self.program.imports,
            self.plan.framework,
            writes=self.plan.is_gang,  # No other job has checked the executors of a gang.
            patience_s=min(RETRY_S, self.plan.start_timeout_s / 4),
        )

    def supersede(self, attempt: int, names: frozenset[str] = PER_ATTEMPT) -> None:
        """Take the number of a gang's attempt, and move away the files of a lost attempt."""
        if attempts.take(self.paths.folder, attempt):
            self._move_away(attempt, names)

    def _move_away(self, attempt: int, names: frozenset[str] = PER_ATTEMPT) -> None:
        """Move away the files of a lost attempt: its process may still be writing them."""
        paths = self.paths

        def move() -> None:
            for name in storage.list_names(paths.folder):
                if is_of_attempt(name, names):
                    old = storage.join(paths.folder, name)
                    storage.rename(old, storage.join(paths.superseded(attempt - 1), name))

        if not attempt:
            return
        try:
            retry(move, "move the files of a lost attempt")
        except PermissionError as exc:
            if not storage.is_local(paths.folder):
                raise
            raise PermissionError(
                exc.errno,
                f"the files of attempt {attempt - 1} in {paths.folder} cannot be moved away as "
                f"user {user_name()}: {exc}. Another user has probably made them. Let that user, "
                "or root, remove them; and let all executors run as one user, or open run "
                "directories to their group with SPARKDL_PERMISSIONS=2770.",
            ) from exc

    def begin(self, attempt: int, place: Mapping[str, Any]) -> None:
        """Write the parameters of the trial, and who makes this attempt."""
        params = mask_params(self.trial.params, self.secrets)
        text = to_json({"params": params, "seed": self.trial.seed}, indent=1)
        info = json.dumps({"attempt": attempt, "pid": os.getpid(), **place})

        def write() -> None:
            make_files(self.paths.folder)
            storage.write(self.paths.params, text)
            storage.write(self.paths.attempt(attempt), info)

        retry(write, "write the start of a trial")

    def start_process(
        self,
        folder: Path,
        log: str,
        gpus: AssignedGpus,
        me: Mapping[str, Any],
        sockets: Mapping[str, socket.socket],
        runs_server: bool = False,
        work: str = WORK,
    ) -> TrainingProcess:
        """Start a training process of this trial.

        Args:
            folder: the local folder that the process writes into.
            log: the name of the file in it for the output of the process.
            gpus: its GPUs, and variables by which it finds its peers.
            me: fields of its `Context` that differ between the processes of a trial.
            sockets: sockets for its rows and for the ring, see `Context`.
            runs_server: run TensorFlow's server in place of the user's function.
            work: the name of its working directory in `folder`. Relative names of files in one
                process must not be those of another.
        """
        payload = {
            "function": None if runs_server else self.program.function,
            "modules": dict(self.program.modules),
            "loaded": self.program.loaded,
            "path": [_absolute(entry) for entry in sys.path],
            "cwd": os.getcwd() if runs_server else str(folder / work),
            "environ": self._environ(gpus.environ),
            "context": {**self._context(folder), **me},
            "metrics": list(self.trial.metrics),
            "secrets": list(self.secrets),
        }
        scratch = None if storage.is_local(self.run.path) else folder
        timeout_s = self.plan.start_timeout_s if self.plan.is_gang else self._start_timeout_s
        role = me["role"] if self.plan.is_gang else ""
        use = folder / attempts.use_of(me["attempt"], role, me.get("index"))
        return TrainingProcess(
            self.start, payload, folder / log, scratch, timeout_s, sockets, gpus.locks, use
        )

    def _environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        cores = max(1, min(self.cores, len(os.sched_getaffinity(0))))
        return {
            **(shared_gpu_variables() if self.plan.shares_gpus else {}),
            # The fork server is shared by the executors of a host and has the environment of one.
            **without_credentials(os.environ, self.run.path),
            **self.plan.env,
            **thread_counts(cores, self.plan.env),
            **environ,
            "SPARKDL_RUN": self.run.id,
        }

    def _context(self, folder: Path) -> dict[str, Any]:
        return {
            "kind": self.plan.kind,
            "run": self.run.id,
            "trial": self.trial.number,
            "params": dict(self.trial.params),
            "seed": self.trial.seed,
            "data_seed": self.trial.seed,
            "folder": str(folder),
            "url": self.paths.folder,
            "run_path": self.run.path,
            "task_cwd": os.getcwd(),
            "keep_checkpoints": self.trial.keep_checkpoints,
            "row_key": self.trial.row_key,
            "metric": self.trial.metrics[0],
            "other_metrics": self.trial.metrics[1:],
            "direction": self.trial.direction,
            "rungs": self.trial.rungs,
            "reported": self.trial.reported,
            "timeline": self.plan.timeline,
            "strategy": self.plan.roles[0].strategy,
        }

    def outcome_of(self, end: ProcessExit, folder: Path, log: str) -> Outcome:
        """Return the outcome of a process that has ended, with secrets masked.

        Args:
            end: the exit of the process.
            folder: the local folder that the process wrote into.
            log: the name of its log file.
        """
        secrets = self.secrets
        outcome = end.outcome
        if outcome is None:
            tail = log_tail(storage.join(str(folder), log))
            reason = end.stopped or describe_exit(end, self.plan.trial_timeout_s)
            outcome = Outcome(
                status=Status.FAILED,
                error="; ".join(filter(None, (reason, end.unkillable))),
                traceback=f"The last lines of its log:\n{tail}",
            )
        error, failure = outcome.error, None
        if outcome.status is Status.FAILED:
            failure, url = classify_failure(end), storage.join(self.paths.folder, log)
            error = f"{outcome.error}\n\n{outcome.traceback or ''}\n\nIts log: {url}\n"
        return replace(
            outcome,
            error=None if error is None else mask_text(error, secrets),
            note=mask_text(outcome.note or "", secrets) or None,
            traceback=None,
            failure=failure,
            outputs=mask_outputs(outcome.outputs, files_in(folder, outcome.outputs), secrets),
            exception=without_secrets(outcome.exception, secrets),
            usage=end.usage,
        )


def _absolute(entry: str) -> str:
    """Return an entry of `sys.path` for a process that works in another directory."""
    # Some entries are names for import hooks, not paths.
    return os.path.abspath(entry) if not entry or os.path.exists(entry) else entry
