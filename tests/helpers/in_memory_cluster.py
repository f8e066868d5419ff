"""A cluster without Spark: tests decide what comes out of each trial, and when."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

from sparkdl.cluster.gang.task import RankTask
from sparkdl.cluster.outcome import Outcome, RankInfo, Status
from sparkdl.cluster.plan import Plan, Resources
from sparkdl.cluster.preflight import REPORT_SCHEMA
from sparkdl.cluster.program.packaging import Program
from sparkdl.cluster.slots import Slots
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.runs.states import Failure

__all__ = [
    "Attempt",
    "InMemoryCluster",
    "Outcome",
    "killed",
    "lost",
    "not_importable",
    "pruned",
    "raised",
    "returned",
    "unusable",
]

WAIT_S = 120.0  # Only ends a hang.

# ---- what comes out of an attempt


def returned(value: float | None = None, **outputs: Any) -> Outcome:
    """The training function has returned."""
    named = outputs if value is None else {"value": value, **outputs}
    return Outcome(status=Status.RETURNED, outputs=named)


def raised(error: str, failure: Failure = Failure.EXCEPTION) -> Outcome:
    """The training function has raised, or its process has crashed."""
    text = f"{error}\n\nTraceback ...\n"
    return Outcome(status=Status.FAILED, error=text, failure=failure)


def pruned() -> Outcome:
    """The training function has raised `TrialPruned`."""
    return Outcome(status=Status.PRUNED)


def unusable(reason: str) -> Outcome:
    """The training function has returned what cannot be kept."""
    return Outcome(status=Status.INVALID, error=reason)


def not_importable(problem: str) -> Outcome:
    """The executor cannot run the program."""
    return Outcome(status=Status.REFUSED, error=problem)


def lost() -> JobFailed:
    """The executor was lost more often than Spark repeats a task."""
    return JobFailed(JobEnd.LOST, "its executor was lost")


def killed() -> JobFailed:
    """Somebody has cancelled the Spark job."""
    return JobFailed(JobEnd.CANCELLED, "its Spark job was cancelled")


class Attempt:
    """An attempt at a trial that has a slot.

    Attributes:
        task: what was submitted.
        number: the number of the trial.
        attempt: the number of the attempt.
        paths: the files of the trial.
        executor: the id of its executor.
        num_reports: the number of reports of this attempt.
    """

    def __init__(
        self, task: TrialTask, end: "SimpleQueue[Outcome | BaseException]", executor: str
    ) -> None:
        self.task = task
        self.number = task.trial.number
        self.attempt = task.trial.attempt
        self.paths: TrialPaths = task.paths
        self.executor = executor
        self.num_reports = 0
        self._end = end

    def start(self) -> None:
        """Write the files that a task writes first."""
        self.num_reports = 0
        if self.attempt:
            for name in {"metrics.jsonl", "asks.jsonl", "orders.jsonl"} & set(
                storage.list_names(self.paths.folder)
            ):
                old = storage.join(self.paths.folder, name)
                new = storage.join(self.paths.superseded(self.attempt - 1), name)
                storage.rename(old, new)
        ranks = {str(member): {"endpoint": "127.0.0.1:1"} for member in self.task.plan.members}
        who = {"attempt": self.attempt, "pid": 1, "host": "localhost", "ranks": ranks}
        who["executor_id"] = self.executor
        storage.write(self.paths.attempt(self.attempt), json.dumps(who))

    def repeat(self) -> None:
        """Start again on another executor by Spark's own decision, within the same job."""
        self.attempt += 1
        self.start()

    def report(self, step: int, **metrics: float) -> None:
        """Write what `context.report` writes."""
        line = json.dumps({"step": step, "metrics": metrics})
        storage.append(self.paths.metrics, line.encode() + b"\n")
        self.num_reports += 1

    def orders(self) -> list[dict[str, Any]]:
        """Return the orders of the driver."""
        if not storage.exists(self.paths.orders):
            return []
        return [json.loads(line) for line in storage.read(self.paths.orders).splitlines()]

    def ask(self, number: int, **question: Any) -> Any:
        """Ask the driver as an objective in Optuna's style does, and wait for the answer."""
        self.send_request(number, self.num_reports, **question)
        return self.await_answer(number)

    def send_request(self, number: int, num_reports: int, **question: Any) -> None:
        """Write a request that follows a number of reports."""
        head = {"id": number, "attempt": self.attempt, "reports": num_reports}
        storage.append(self.paths.asks, json.dumps({**head, **question}).encode() + b"\n")

    def await_answer(self, number: int) -> Any:
        """Wait for the answer to a request."""
        return self.await_order(lambda order: order.get("id") == number)

    def await_order(self, is_meant: Callable[[dict[str, Any]], bool] = bool) -> Any:
        """Wait for an order of the driver."""
        deadline = time.monotonic() + WAIT_S
        while not (found := [order for order in self.orders() if is_meant(order)]):
            assert time.monotonic() < deadline, self.orders()
            time.sleep(0.002)
        return found[0]

    def end(self, outcome: Outcome | BaseException) -> None:
        """Let `wait` return or raise this."""
        self._end.put(outcome)

    def wait(self) -> Outcome:
        """Wait until the test calls `end`, or the driver cancels the job."""
        outcome = self._end.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@dataclass(eq=False)
class _Job:
    tags: tuple[str, ...]
    num_tasks: int
    end: "SimpleQueue[Any]" = field(default_factory=SimpleQueue)
    is_cancelled: bool = False


class InMemoryCluster:
    """Implements `sparkdl.cluster.base.Cluster` with the threads that submit jobs.

    Jobs get their slots in the order in which they are submitted.

    Args:
        run_task: is called with each attempt, and returns an outcome or raises `JobFailed`; by
            default each attempt waits until the test calls its `end`.
        num_slots: tasks at once.
        conf: the cluster's configuration.

    Attributes:
        num_slots: may be changed at any time.
        started: the numbers of the trial and the attempt, in the order of the starts.
        submitted: the numbers of the trials, in the order of their submission.
        max_running: the largest number of trials at once.
        cancelled: the tags that were cancelled.
        problems: what the preflight finds.
        executors_in_order: the ids of the executors; an attempt runs on the first that its task
            does not avoid.
        executor: the facts of every executor, as the preflight finds them.
    """

    spark: SparkSession | None = None
    version = pyspark.__version__
    master = "memory"
    application = "memory-1"
    tasks_outlive_driver = False

    def __init__(
        self,
        run_task: Callable[[Attempt], Outcome | list[Outcome]] = Attempt.wait,
        num_slots: int = 2,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._run_task = run_task
        self._conf = dict(conf or {})
        self._changed = threading.Condition()
        self._queue: list[_Job] = []
        self._running: list[_Job] = []
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self.num_slots = num_slots
        self.started: list[tuple[int, int]] = []
        self.submitted: list[int] = []
        self.max_running = 0
        self.cancelled: list[str] = []
        self.problems: list[str | None] = [None]
        self.executors_in_order = ["1"]
        self.executor: dict[str, Any] = {
            "host": "memory",
            "cpu": "test",
            "cores": 2,
            "gpus": [],
            "packages": {},
        }

    # ---- the protocol

    def conf(self, key: str) -> str | None:
        return self._conf.get(key)

    def root(self) -> str:
        return "runs"

    def check(self, plan: Plan, program: Program | None = None) -> None:
        pass

    def share(self, value: object) -> Callable[[], None]:
        return lambda: None

    def wait_for_executors(self, size: int, num_cpus: int | None = None) -> None:
        pass

    def executors(self) -> tuple[int, int]:
        return 1, 1

    @property
    def executor_ids(self) -> frozenset[str]:
        return frozenset(self.executors_in_order)

    @property
    def leaving(self) -> frozenset[str]:
        return frozenset()

    def slots(self, resources: Resources, override: int | None = None) -> Slots:
        count = override or self.num_slots
        return Slots(count, count, f"{count} slots in memory")

    def slots_now(self, resources: Resources) -> int:
        return max(1, self.num_slots)

    def num_spare(self, resources: Resources, num_used: int) -> int:
        return self.slots(resources).count - num_used

    def num_waiting(self, *tags: str) -> int:
        return sum(job.num_tasks for job in self._queue if not {*tags} & {*job.tags})

    def enforces(self, resources: Resources) -> bool:
        return True

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
        rows: DataFrame | None = None,
    ) -> list[Any]:
        if schema == REPORT_SCHEMA:
            executor = json.dumps(self.executor)
            return [{"problem": problem, "executor": executor} for problem in self.problems]
        job = _Job(tags, num_tasks)
        trial_task = task.task if isinstance(task, RankTask) else task
        if isinstance(trial_task, TrialTask):
            with self._changed:
                self.submitted.append(trial_task.trial.number)
        with self._slots_of(job):
            if not isinstance(trial_task, TrialTask):
                return _run_anything(task, job)
            avoid = trial_task.trial.avoid
            executor = next(name for name in self.executors_in_order if name not in avoid)
            attempt = Attempt(trial_task, job.end, executor)
            # Spark's numbers begin at 0 again when a whole job is repeated.
            attempt.attempt = max(attempt.attempt, attempt.paths.num_attempts())
            attempt.start()
            with self._changed:
                self.started.append((attempt.number, attempt.attempt))
                self._attempts[attempt.number, attempt.attempt] = attempt
                self._changed.notify_all()
            outcomes = self._run_task(attempt)
            return _rows(attempt, outcomes if isinstance(outcomes, list) else [outcomes])

    @contextmanager
    def _slots_of(self, job: _Job) -> Iterator[None]:
        """Wait for the slots of a job, behind the jobs that were submitted before."""
        with self._changed:
            self._queue.append(job)
            self._changed.notify_all()
            # A slot may become free before this thread hears of the cancellation.
            while job.is_cancelled or self._queue[0] is not job or not self._fits(job):
                if job.is_cancelled:
                    self._queue.remove(job)
                    self._changed.notify_all()
                    raise killed()
                self._changed.wait()
            self._queue.remove(job)
            self._running.append(job)
            self.max_running = max(self.max_running, len(self._running))
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(job)
                self._changed.notify_all()

    def _fits(self, job: _Job) -> bool:
        return job.num_tasks + sum(other.num_tasks for other in self._running) <= self.num_slots

    def cancel(self, tag: str) -> None:
        with self._changed:
            self.cancelled.append(tag)
            for job in (*self._queue, *self._running):
                if tag in job.tags and not job.is_cancelled:
                    job.is_cancelled = True
                    job.end.put(killed())
            self._changed.notify_all()

    # ---- for tests

    def attempt(self, number: int, attempt: int = 0) -> Attempt:
        """Wait until an attempt at a trial has started."""
        key = (number, attempt)
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._attempts, WAIT_S), (
                key,
                self.started,
            )
            return self._attempts[key]

    def await_submitted(self, count: int) -> None:
        """Wait until this number of jobs was submitted for trials."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.submitted) >= count, WAIT_S)

    @property
    def num_running(self) -> int:
        """The number of attempts that have a slot now."""
        with self._changed:
            return len(self._running)

    def release(self, num_slots: int) -> None:
        """Change the number of slots, as when executors come or go."""
        with self._changed:
            self.num_slots = num_slots
            self._changed.notify_all()


def _run_anything(task: Callable[..., Iterator[Any]], job: _Job) -> list[Any]:
    """Call a task that is not a trial, until it has ended or its job is cancelled."""

    def run() -> None:
        rows = []
        try:
            for number in range(job.num_tasks):
                batches = iter([pa.RecordBatch.from_pydict({"id": [number]})])
                rows += [row for batch in task(batches) for row in batch.to_pylist()]
        except Exception as exc:
            job.end.put(JobFailed(JobEnd.ERROR, f"{type(exc).__name__}: {exc}"))
        else:
            job.end.put(rows)

    threading.Thread(target=run, daemon=True).start()
    end = job.end.get()
    if isinstance(end, BaseException):
        raise end
    rows: list[Any] = end
    return rows


def _rows(attempt: Attempt, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The rows that real tasks would yield: one, or one for each rank of a gang."""
    plan = attempt.task.plan
    if not plan.is_gang:
        return [_row(attempt, outcomes[0])]
    rows = []
    for member in plan.members:
        outcome = outcomes[member.rank] if member.rank < len(outcomes) else returned()
        who = RankInfo(rank=member.rank, role=str(member), host="localhost")
        ended_s = outcome.ended_s or time.time()
        is_chief = member.rank == 0
        rows.append(_row(attempt, replace(outcome, who=who, is_chief=is_chief, ended_s=ended_s)))
    return rows


def _row(attempt: Attempt, outcome: Outcome) -> dict[str, Any]:
    reported: dict[str, float] = {}
    if storage.exists(attempt.paths.metrics):
        for line in storage.read(attempt.paths.metrics).splitlines():
            reported |= json.loads(line)["metrics"]
    usage = {"starting_s": 0.0, "running_s": 0.0, "cpu_s": 0.0, "peak_memory_mb": 1.0}
    outcome = replace(
        outcome,
        reported=outcome.reported or reported,
        usage=outcome.usage or usage,
        attempt=attempt.attempt,
    )
    return {"outcome": outcome.to_json()}
