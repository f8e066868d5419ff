"""Where it runs: D. Runs the trials of a run on Spark, a job each; writes down what happened."""

import json
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sparkdl import storage
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.spark import Cluster, JobEnd, JobFailed, Slots
from sparkdl.cluster.task import OUTCOME_SCHEMA, TrialTask
from sparkdl.errors import AllTrialsFailedError, PreflightError
from sparkdl.runs.journal import Event
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.run import Trial
from sparkdl.runs.start import OpenRun
from sparkdl.runs.states import RunState, TrialState
from sparkdl.search.limits import Limits
from sparkdl.search.outcome import event_of, exception_of
from sparkdl.search.progress import Progress

__all__ = ["Execution"]

LOOK_S = 0.2
LOOK_REMOTE_S = 3.0
SLOTS_S = 2.0


@dataclass
class _Flight:
    """A trial that Spark has, waiting for a slot or running."""

    trial: Trial
    job: "Future[list[Any]]"
    submitted_s: float
    first: int  # Its first attempt; Spark may make more by itself.
    seen: int  # The last attempt whose start was seen.


class Execution:
    """Runs the trials of one run to the end. The `Handle` of its `Run`.

    Args:
        opened: the run directory.
        cluster: where to run.
        plan: what each trial needs.
        make_task: from a trial and the cores it may use to what Spark executes.
        slots: how many trials fit at once, asked again and again.
        limits: when to stop.
        shown: whether to show how it goes.
        notes: what the person should know before it starts.
    """

    def __init__(
        self,
        opened: OpenRun,
        cluster: Cluster,
        plan: Plan,
        make_task: Callable[[Trial, int], TrialTask],
        slots: Callable[[], Slots],
        limits: Limits,
        shown: bool,
        notes: Sequence[str] = (),
    ) -> None:
        self.run = opened.run
        self._opened, self._cluster, self._plan = opened, cluster, plan
        self._make_task, self._slots, self._limits = make_task, slots, limits
        self._progress = Progress(opened.run, shown)
        self._waiting = deque(t for t in opened.run.trials if not t.state.is_final)
        self._flights: dict[int, _Flight] = {}
        self._ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(max_workers=4096, thread_name_prefix="sparkdl-trial")
        self._cancelled: set[int] = set()
        self._crashes: Counter[int] = Counter()
        self._losses: Counter[int] = Counter()
        self._stopped: tuple[RunState, str] | None = None
        self._begun = time.monotonic()
        self._room: tuple[float, Slots] | None = None
        self._notes = notes
        self._thread: threading.Thread | None = None
        self._raised: BaseException | None = None

    # ---- the handle of a live run

    def start(self) -> None:
        """Run in the background until `wait` is called."""
        self._thread = threading.Thread(target=self._in_background, name="sparkdl-run")
        self._thread.start()

    def _in_background(self) -> None:
        try:
            self.execute()
        except BaseException as exc:  # noqa: BLE001 Raised again in whoever waits.
            self._raised = exc

    def wait(self) -> None:
        """Return when the run has ended; raise what `execute` raised."""
        try:
            if self._thread:
                self._thread.join()
        except KeyboardInterrupt:
            self.cancel(None)
            raise
        if self._raised:
            raise self._raised

    def cancel(self, number: int | None) -> None:
        """End one trial, or with None all that have not finished."""
        if number is None:
            self._stop(RunState.CANCELLED, "cancelled")
        else:
            self._cancelled.add(number)
        self._ended.put(None)

    # ---- the loop

    @contextmanager
    def failing(self) -> Iterator[None]:
        """For what comes before the trials: if it raises, the run is over and says so."""
        try:
            yield
        except BaseException as exc:
            self._stop(RunState.FAILED, f"{exc}".split("\n")[0] or "interrupted")
            self._abandon()
            self._finish()
            raise

    def execute(self) -> None:
        """Run until every trial has ended or something stops the run.

        Raises:
            AllTrialsFailedError: no trial completed.
            PreflightError: an executor cannot run the trials.
            KeyboardInterrupt: after the run was stopped cleanly.
        """
        try:
            with self._progress:
                self._announce()
                while self._waiting or self._flights:
                    self._fill()
                    self._take()
                    self._look()
        except BaseException as exc:
            why = "interrupted" if isinstance(exc, KeyboardInterrupt) else f"{exc}"
            self._stop(RunState.CANCELLED, why)
            self._abandon()
            raise
        finally:
            self._finish()
        self._raise_if_none_completed()

    def _announce(self) -> None:
        limit, slots, trials = self._limit(), self._counted(), len(self._waiting)
        if trials <= limit:
            many = f"{trials} at once (all of them; {slots.reason})"
        elif limit < slots.count:
            many = f"{limit} at once (parallelism={limit}; {slots.reason})"
        else:
            many = f"{limit} at once ({slots.reason})"
        self._progress.say(f"Run {self.run.id}: {trials} trials, {many}; {self._plan}")
        self._progress.say(f"Everything is kept in {self.run.path}")
        for note in self._notes:
            self._progress.say(f"Note: {note}")

    def _limit(self) -> int:
        """How many trials may run at once. Slots come and go, so they are counted again."""
        count = self._counted().count
        return max(1, min(count, self._limits.parallelism or count))

    def _counted(self) -> Slots:
        now = time.monotonic()
        if self._room is None or (self._waiting and now - self._room[0] > SLOTS_S):
            self._room = (now, self._slots())
        return self._room[1]

    def _ahead(self, limit: int) -> int:
        """Jobs that Spark holds ready beyond its slots, so that a free slot never waits for us.

        None where something else than Spark's slots limits how many may run at once.
        """
        limited = limit < self._counted().count or not self._cluster.enforces(self._plan.resources)
        return 0 if limited else max(1, limit // 4)

    def _fill(self) -> None:
        limit = self._limit()
        while self._waiting and (self._stopped or len(self._flights) < limit + self._ahead(limit)):
            trial = self._waiting.popleft()
            if self._stopped or trial.number in self._cancelled:
                self._conclude(trial, {"state": "CANCELLED", "error": self._why_cancelled()})
            else:
                self._submit(trial, limit)

    def _submit(self, trial: Trial, limit: int) -> None:
        at_once = min(limit, len(self._waiting) + len(self._flights) + 1)
        task = self._make_task(trial, max(1, self._counted().cores // at_once))
        params = ", ".join(f"{name}={value}" for name, value in trial.params.items())
        job = self._pool.submit(
            self._cluster.submit,
            task,
            OUTCOME_SCHEMA,
            resources=self._plan.resources,
            description=f"{self.run.id} trial {trial.number}: {params}",
            tags=(self._tag(), self._tag(trial.number)),
        )
        first = trial.attempts
        self._flights[trial.number] = _Flight(trial, job, time.monotonic(), first, first - 1)
        job.add_done_callback(lambda _: self._ended.put(trial.number))

    def _tag(self, number: int | None = None) -> str:
        return f"sparkdl-{self.run.id}" + ("" if number is None else f"-{number}")

    def _take(self) -> None:
        """Wait a moment for a trial to end, then take all that have ended."""
        if not self._flights:
            return
        look_s = LOOK_S if storage.is_local(self.run.path) else LOOK_REMOTE_S
        try:
            number = self._ended.get(timeout=look_s)
            while True:
                if number is not None and number in self._flights:
                    self._land(self._flights.pop(number))
                number = self._ended.get_nowait()
        except queue.Empty:
            pass

    def _look(self) -> None:
        """See what runs: starts, lost executors, output. Pass on what is to end."""
        self._opened.owner.beat()
        for flight in self._flights.values():
            self._see_start(flight)
            self._progress.look(flight.trial)
        states = [flight.trial.state for flight in self._flights.values()]
        self._progress.counts(states.count(TrialState.RUNNING))
        limit = self._limits.timeout_s
        if limit and time.monotonic() - self._begun > limit:
            self._stop(RunState.CANCELLED, f"timeout_s={limit:g} is over")
        if self._stopped:
            self._cluster.cancel(self._tag())
        for number in self._cancelled & self._flights.keys():
            self._cluster.cancel(self._tag(number))

    def _see_start(self, flight: _Flight) -> None:
        paths = self._opened.paths.trial(flight.trial.number)
        while storage.exists(paths.attempt(flight.seen + 1)):
            flight.seen += 1
            if flight.seen > flight.first:
                self._lose(flight.trial, flight.seen - 1)
            self._record(flight.trial, {"state": "RUNNING", "attempt": flight.seen})

    def _lose(self, trial: Trial, attempt: int) -> None:
        self._losses[trial.number] += 1
        self._progress.look(trial, last=True)
        self._progress.say(f"[trial {trial.number}] lost its executor; it is run again")
        event = {"state": "LOST", "attempt": attempt, "error": "its executor was lost"}
        self._record(trial, event)

    # ---- the end of a trial

    def _land(self, flight: _Flight) -> None:
        self._see_start(flight)
        try:
            row = flight.job.result()[0]
        except JobFailed as failed:
            self._land_failed(flight, failed)
            return
        outcome = json.loads(row["outcome"])
        if "preflight" in outcome:
            raise PreflightError(f"trial {flight.trial.number}: {outcome['preflight']}")
        used = outcome["usage"]
        in_job_s = time.monotonic() - flight.submitted_s
        queued_s = max(0.0, in_job_s - used["starting_s"] - used["running_s"])
        event = event_of(outcome, queued_s, self.run.metric)
        if event["state"] == "FAILED":
            self._crashes[flight.trial.number] += 1
            flight.trial.exception = exception_of(row["exception"], event["error"])
            if self._crashes[flight.trial.number] <= self._limits.max_restarts:
                self._again(flight.trial, {**event, "state": "WAITING"})
                return
        self._conclude(flight.trial, event)

    def _land_failed(self, flight: _Flight, failed: JobFailed) -> None:
        trial, most = flight.trial, self._limits.max_losses
        event: Event = {"error": str(failed), "attempt": max(0, flight.seen)}
        if failed.end is JobEnd.CANCELLED:
            mine = self._stopped or trial.number in self._cancelled
            why = self._why_cancelled() if mine else "its Spark job was cancelled outside this run"
            self._conclude(trial, {**event, "state": "CANCELLED", "error": why})
        elif failed.end is JobEnd.LOST and (most is None or self._losses[trial.number] < most):
            self._lose(trial, max(0, flight.seen))
            self._again(trial, {**event, "state": "WAITING"})
        else:
            trial.exception = exception_of(None, str(failed))
            self._conclude(trial, {**event, "state": "FAILED"})

    def _again(self, trial: Trial, event: Event) -> None:
        self._progress.look(trial, last=True)
        self._record(trial, event)
        self._waiting.append(trial)

    def _conclude(self, trial: Trial, event: Event) -> None:
        self._progress.look(trial, last=True)
        self._record(trial, event)
        self._progress.ended(trial)
        if why := self._limits.reached(self.run.trials):
            self._stop(RunState.FAILED, why)

    def _record(self, trial: Trial, event: Event) -> None:
        event = {"event": "trial", "number": trial.number, **event}
        self._opened.journal.write([event])
        self.run.apply(event)

    # ---- the end of the run

    def _stop(self, state: RunState, reason: str) -> None:
        self._stopped = self._stopped or (state, reason)

    def _why_cancelled(self) -> str:
        return f"the run was stopped: {self._stopped[1]}" if self._stopped else "cancelled"

    def _abandon(self) -> None:
        """End everything that has not ended, whatever it is doing."""
        with self._progress:
            while self._waiting or self._flights:
                self._fill()
                self._cluster.cancel(self._tag())
                self._take()

    def _finish(self) -> None:
        self._pool.shutdown(wait=False)
        completed = any(t.state == TrialState.COMPLETE for t in self.run.trials)
        natural = RunState.COMPLETE if completed else RunState.FAILED
        state, reason = self._stopped or (natural, None)
        event = {
            "event": "end",
            "state": str(state),
            "reason": reason,
            "duration_s": round(time.monotonic() - self._begun, 3),
        }
        self._opened.journal.write([event])
        self.run.apply(event)
        self._opened.owner.release()

    def _raise_if_none_completed(self) -> None:
        if self.run.state != RunState.FAILED or self.run.counts().get("COMPLETE"):
            return
        bad = [t for t in self.run.trials if t.state in (TrialState.FAILED, TrialState.INVALID)]
        first = next((t for t in bad if t.exception), bad[0])
        raise AllTrialsFailedError(
            f"no trial of run {self.run.id} completed: {self.run.counts_text()}. "
            f"Trial {first.number} with {first.params}: {(first.error or '').splitlines()[0]}\n"
            f"Its log is {TrialPaths(first.path).log}, everything is in {self.run.path}"
        ) from first.exception
