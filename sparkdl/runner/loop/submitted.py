"""Runs on the driver. The trials that were handed to Spark: a thread and a job for each."""

import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkdl.cluster.base import Cluster
from sparkdl.cluster.outcome import EMBEDDED, Outcome
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.cluster.spark_settings import excludes_executors
from sparkdl.cluster.topology import Job, Topology
from sparkdl.cluster.trial_task import OUTCOME_SCHEMA, TrialTask
from sparkdl.errors import SparkDLError
from sparkdl.files import storage
from sparkdl.files.jsonl import from_json
from sparkdl.files.layout import RunPaths
from sparkdl.files.polling import Outages, retry, shared_s
from sparkdl.files.rank_files import RankFiles
from sparkdl.runner.harmless import tolerated
from sparkdl.runner.job_threads import JobThreads
from sparkdl.runner.loop.conclusion import READ_S
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runs.events import GangEvent
from sparkdl.runs.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Seconds between two looks, on a remote store, for a running trial that Spark has started again.
REPEATED_S = 30.0

# Number of trials at once for which a run in the background has its threads from the beginning.
MAX_READY = 100

# Seconds for which `abandon` waits for ends at a time.
ABANDON_S = 0.2

# A job whose training is over gets this long to end by itself.
EXIT_GRACE_S = 5.0

_logger = logging.getLogger("sparkdl.runner")


@dataclass(kw_only=True)
class SubmittedTrial:
    """A trial that Spark has, waiting for a slot or running.

    Attributes:
        trial: the trial.
        job: its job, and all that runs beside it.
        rows: the rows of the job, or the exception that ended it.
        submitted_s: the time of the submission, on the monotonic clock.
        first: the number of its first attempt; Spark may make more by itself.
        newest_attempt: the number of the last attempt whose start was seen; `first - 1` before any.
        executor: the id of the executor that runs the last attempt; None if it is not known.
        host: the host of that executor.
        over_s: the time at which its training was seen to be over while Spark goes on; None before.
        is_recalled: its job is cancelled, unless it starts first, and the trial waits again.
    """

    trial: Trial
    job: Job
    rows: "Future[list[Any]]"
    submitted_s: float
    first: int
    newest_attempt: int
    executor: str | None = None
    host: str = ""
    over_s: float | None = None
    is_recalled: bool = False

    @property
    def has_started(self) -> bool:
        """True if the start of an attempt was seen."""
        return self.newest_attempt >= self.first

    def begin(self, text: bytes) -> None:
        """Note where an attempt has started, from the content of the file of its start."""
        start: Mapping[str, Any] = {}
        with contextlib.suppress(ValueError):  # A file that cannot be read names no executor.
            start = json.loads(text)
        self.executor, self.host = start.get("executor_id"), start.get("host", "")


class SubmittedTrials:
    """Submit trials, and wait for their ends.

    Args:
        cluster: the cluster.
        plan: the plan of each trial.
        topology: makes the tasks and the job of a trial.
        paths: the run directory, where tasks show that they have started.
        rows: the rows for the tasks of each trial; None without `data=`.
        num_ready: number of trials that can be submitted after the main thread has ended, when
            Python may refuse to start threads.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        topology: Topology,
        paths: RunPaths,
        rows: "DataFrame | None" = None,
        num_ready: int = 0,
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._topology = topology
        self._paths = paths
        self._rows = rows
        self._copies: set[str] = set()  # The executors with a copy of the rows.
        self._needing_rows: set[int] = set()  # The trials that found no copy.
        self._tag = f"sparkdl:{paths.folder.rsplit('/', 1)[-1]}"
        self._threads = JobThreads("sparkdl-trial", num_ready)
        self._end = threading.Event()
        self._submitted: dict[int, SubmittedTrial] = {}
        self._outages = Outages("look for the starts of trials")
        self._is_local = storage.is_local(paths.folder)
        self._looked_s = -math.inf
        self._rank_events: list[GangEvent] = []

    @classmethod
    def of(cls, prepared: PreparedRun, paths: RunPaths, num_trials: float) -> "SubmittedTrials":
        """Return the trials of a prepared run, of which none was submitted yet.

        Args:
            prepared: the request, the plan and the cluster.
            paths: the run directory.
            num_trials: the number of trials that the run may have.
        """
        limit, request = prepared.concurrency.limit, prepared.request
        return cls(
            prepared.cluster,
            prepared.plan,
            request.topology,
            paths,
            prepared.rows(num_trials),
            num_ready=0 if request.options.wait else min(limit, MAX_READY),
        )

    def __len__(self) -> int:
        return len(self._submitted)

    def __iter__(self) -> Iterator[SubmittedTrial]:
        return iter(self._submitted.values())

    def submit(self, trial: Trial, task: TrialTask) -> None:
        """Hand a trial to Spark."""
        params = ", ".join(f"{name}={value}" for name, value in trial.params.items())
        first = trial.attempts
        files = RankFiles(self._paths.trial(trial.number).ranks(first))
        job = self._topology.job(self._plan, files, self._cluster)
        has_copies = self._has_copies(trial.number)
        if has_copies and task.feed:
            task = replace(task, feed=replace(task.feed, is_in_partition=False))
        rows = self._threads.submit(
            job.run,
            self._topology.task(task),
            OUTCOME_SCHEMA,
            num_tasks=self._plan.size,
            barrier=self._plan.is_gang and not self._plan.elastic,
            resources=self._plan.resources,
            description=f"{task.run.id} trial {trial.number}: {params}",
            tags=(self._tag, f"{self._tag}:{trial.number}"),
            rows=None if has_copies else self._rows,
        )
        self._submitted[trial.number] = SubmittedTrial(
            trial=trial,
            job=job,
            rows=rows,
            submitted_s=time.monotonic(),
            first=first,
            newest_attempt=first - 1,
        )
        rows.add_done_callback(lambda _: self._end.set())

    def _has_copies(self, number: int) -> bool:
        """Return True if each executor has a copy of the rows that a trial may read."""
        if not self._copies or number in self._needing_rows:
            return False
        if excludes_executors(self._cluster.conf):
            return False  # Spark would count a task without a copy as a fault of its executor.
        present = self._cluster.executor_ids
        return present <= self._copies if present else EMBEDDED in self._copies

    def wake(self) -> None:
        """Let `wait_for_ended` return soon."""
        self._end.set()

    def wait_for_ended(self, timeout_s: float) -> list[SubmittedTrial]:
        """Wait for a trial to end, and return all that have. Each stays until `forget`."""
        self._end.wait(timeout_s)
        self._end.clear()
        for submitted in self:
            for news in submitted.job.look():
                names = [str(member) for member in self._plan.members]
                self._rank_events.append(news.event(submitted.trial.number, names))
            if self._rows is not None and not self._plan.is_gang:
                try:
                    self._cut_short(submitted)
                except OSError as exc:
                    _logger.debug("the outcome of a trial cannot be looked for: %s", exc)
        return [submitted for submitted in self if submitted.rows.done()]

    def rank_events(self) -> list[GangEvent]:
        """Return the news of the ranks of gangs since the last call."""
        events, self._rank_events = self._rank_events, []
        return events

    def _cut_short(self, submitted: SubmittedTrial) -> None:
        """End a job for which Spark goes on computing rows that no process reads any more."""
        if submitted.over_s is None and storage.exists(self._outcome_file(submitted)):
            submitted.over_s = time.monotonic()
        if submitted.over_s and time.monotonic() - submitted.over_s > EXIT_GRACE_S:
            self.cancel({submitted.trial.number})

    def _outcome_file(self, submitted: SubmittedTrial) -> str:
        return self._paths.trial(submitted.trial.number).outcome(submitted.newest_attempt)

    def outcomes_of(self, submitted: SubmittedTrial) -> list[Outcome]:
        """Return the outcomes of the processes of a trial that has ended.

        Raises:
            JobFailed: if Spark did not bring them.
            PreflightError: if the executors cannot run sparkdl.
        """
        try:
            rows = submitted.rows.result()
        except Exception as exc:
            if isinstance(exc, JobFailed) and exc.end is JobEnd.NO_COPY:
                # It has gone with its executor, or made room for another run.
                self._copies.clear()
                self._needing_rows.add(submitted.trial.number)
            if submitted.over_s is None:
                if isinstance(exc, JobFailed) and exc.rank is not None:
                    raise self._with_host(exc, submitted) from exc
                if isinstance(exc, JobFailed | SparkDLError):
                    raise
                # Spark tells of a failed job with JobFailed. Its own end may raise anything.
                error = f"{type(exc).__name__}: {exc}".split("\n")[0]
                raise JobFailed(JobEnd.SPARK_ENDED, error) from exc
            # Others may write to the run directory: nothing from there is unpickled.
            url = self._outcome_file(submitted)
            try:
                content = retry(lambda: storage.read(url), "read the outcome of a trial", READ_S)
            except OSError as failed:  # The trial runs again.
                raise JobFailed(JobEnd.LOST, f"{url} could not be read: {failed}") from failed
            outcomes = [Outcome.from_json(content).without_exception()]
        else:
            outcomes = [Outcome.from_json(row["outcome"]) for row in rows]
        self._copies.update(outcome.copy_on for outcome in outcomes if outcome.copy_on)
        return outcomes

    def _with_host(self, failed: JobFailed, submitted: SubmittedTrial) -> JobFailed:
        """Return the error of a gang that has lost a rank, with the host of the rank."""
        if not submitted.has_started:
            return failed  # The file of an earlier attempt names the hosts of that attempt.
        members = {member.rank: str(member) for member in self._plan.members}
        name = members.get(failed.rank or 0, "")
        url = self._paths.trial(submitted.trial.number).attempt(submitted.newest_attempt)
        try:
            host = from_json(storage.read(url))["ranks"][name]["host"]
        except (OSError, KeyError, TypeError, ValueError):
            return failed  # The gang was lost before its ranks had met.
        return JobFailed(failed.end, f"the executor of {name} on host {host} was lost", failed.rank)

    def forget(self, number: int) -> None:
        """Remove a trial whose end has been recorded; one that is not here is no error."""
        if self._submitted.pop(number, None) is None or not self._plan.is_gang:
            return
        try:
            storage.remove(self._paths.trial(number).all_ranks)
        except OSError as exc:
            _logger.warning("files of trial %d cannot be removed: %s", number, exc)

    def recall(self, num_left: int) -> None:
        """Take back trials that have not started, so that at most `num_left` trials are left.

        The newest are taken back. Their jobs end soon; `cancel` makes sure of that.
        """
        num_excess = max(0, len(self) - num_left)
        waiting = [submitted for submitted in self if not submitted.has_started]
        for submitted in waiting[::-1][:num_excess]:
            submitted.is_recalled = True
        self.cancel(set())

    @property
    def recalled(self) -> set[int]:
        """The numbers of the trials that were taken back before they have started."""
        return {s.trial.number for s in self if s.is_recalled and not s.has_started}

    def starts(self) -> Iterator[tuple[SubmittedTrial, int]]:
        """Yield the attempts that have started since the last call, each with its trial."""
        waiting = [s for s in self if s.newest_attempt < s.first or s.rows.done()]
        now = time.monotonic()
        if self._is_local or now - self._looked_s >= shared_s(REPEATED_S, len(self)):
            waiting, self._looked_s = list(self), now
        while waiting:
            # A store is asked for all files at once; a trial may have started more than once.
            urls = {self._attempt_file(submitted): submitted for submitted in waiting}
            files: dict[str, bytes] = {}
            with self._outages.tolerated():
                files = storage.read_new(dict.fromkeys(urls, 0))
            waiting = [urls[url] for url in files]
            for submitted, text in zip(waiting, files.values(), strict=True):
                submitted.newest_attempt += 1
                submitted.begin(text)
                yield submitted, submitted.newest_attempt

    def _attempt_file(self, submitted: SubmittedTrial) -> str:
        return self._paths.trial(submitted.trial.number).attempt(submitted.newest_attempt + 1)

    def cancel(self, numbers: "set[int] | None" = None) -> None:
        """Let Spark end some of the trials, or with None all. Repeating this is harmless."""
        if numbers is None:
            self._cancel(self._tag)
        else:
            numbers = (numbers | self.recalled) & self._submitted.keys()
        for number in numbers or ():
            self._cancel(f"{self._tag}:{number}")
        for number, submitted in self._submitted.items():
            if numbers is None or number in numbers:
                submitted.job.end()

    def _cancel(self, tag: str) -> None:
        try:
            self._cluster.cancel(tag)
        except Exception as exc:  # noqa: BLE001 The jobs of a Spark that has ended end by themselves.
            _logger.debug("Spark cannot cancel %s: %r", tag, exc)

    def abandon(
        self, read: Callable[[list[Trial]], object], end: Callable[[SubmittedTrial], object]
    ) -> None:
        """Cancel all trials, wait for their ends, and forget them; what fails is logged.

        Args:
            read: reads the last messages of trials that have ended.
            end: is called with each trial that has ended, after `read`.
        """
        while self:
            self.cancel()
            for submitted in self.wait_for_ended(ABANDON_S):
                with tolerated(f"record the end of trial {submitted.trial.number}"):
                    read([submitted.trial])
                    end(submitted)
                self.forget(submitted.trial.number)

    def close(self) -> None:
        """Accept no more trials."""
        self._threads.close()
