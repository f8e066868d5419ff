"""Where it runs: D. Runs the trials of a run on Spark, a job each; writes down what happened."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkdl import storage
from sparkdl.cluster.ends import Failure
from sparkdl.cluster.jobs import JobEnd, JobFailed
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.task import TrialTask
from sparkdl.errors import PreflightError
from sparkdl.runs.journal import Event
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.redact import mask_text
from sparkdl.runs.start import STOPPED, OpenRun
from sparkdl.runs.states import RunState, TrialState
from sparkdl.runs.trial import Trial
from sparkdl.search.flights import Flight, Flights
from sparkdl.search.limits import Limits, Retries
from sparkdl.search.outcome import combined, event_of, exception_of
from sparkdl.search.pace import Pace
from sparkdl.search.progress import Progress

__all__ = ["Execution"]

LOOK_S = 0.2
LOOK_REMOTE_S = 3.0


class Execution:
    """Runs the trials of one run to the end.

    Args:
        opened: the run directory.
        plan, flights: what each trial needs, and the way to Spark.
        make_task: from a trial and the cores it may use to what Spark executes.
        pace: how many at once.
        limits: when to stop.
        progress: shows the person how it goes.
    """

    def __init__(
        self,
        opened: OpenRun,
        plan: Plan,
        flights: Flights,
        make_task: Callable[[Trial, int], TrialTask],
        pace: Pace,
        limits: Limits,
        progress: Progress,
    ) -> None:
        self.run = opened.run
        self._opened, self._plan, self._make_task = opened, plan, make_task
        self._pace, self._limits, self._progress = pace, limits, progress
        self._waiting = deque(t for t in opened.run.trials if not t.state.is_final)
        self._flights = flights
        self._cancelled: set[int] = set()
        self._started = 0
        self._retries = Retries(limits, plan.is_gang)
        self._short_since: float | None = None
        self._stopped: tuple[RunState, str] | None = None
        self._begun = self._trials_begun = time.monotonic()
        self._fatal: PreflightError | None = None

    def cancel(self, number: int | None) -> None:
        """End one trial, or with None all that have not finished."""
        if number is None:
            self._stop(RunState.CANCELLED, "cancelled")
        else:
            self._cancelled.add(number)
        self._flights.wake()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """For what comes before the trials: if it raises, the run is over and says so."""
        try:
            yield
        except BaseException as exc:
            self._stop_for(exc)
            self._finish()
            raise

    def execute(self) -> None:
        """Run until every trial has ended or something stops the run.

        Raises:
            AllTrialsFailedError, TrainingFailedError: no trial completed.
            PreflightError: an executor cannot run the trials.
            KeyboardInterrupt: after the run was stopped cleanly.
        """
        try:
            with self._progress:
                self._trials_begun = time.monotonic()
                self._progress.announce(len(self._waiting), self._pace.limit, self._pace.slots)
                while self._waiting or self._flights:
                    self._fill()
                    self._take()
                    self._look()
        except BaseException as exc:
            self._stop_for(exc)
            raise
        finally:
            self._finish()
            self._progress.finished()
        if self._fatal:
            raise self._fatal
        self.run.raise_if_none_completed()

    def _fill(self) -> None:
        if self._stopped:
            self._drop_waiting()
        if self._waiting:
            self._pace.recount()
        while self._waiting and (self._waiting[0].number in self._cancelled or self._has_room()):
            trial = self._waiting.popleft()
            if trial.number in self._cancelled:
                self._conclude(trial, {"state": "CANCELLED", "error": self._why_cancelled()})
            else:
                cores = self._pace.cores(len(self._waiting) + len(self._flights) + 1)
                self._flights.submit(trial, self._make_task(trial, cores))

    def _has_room(self) -> bool:
        if self._pace.fits or not self._plan.is_gang:
            self._short_since = None
            return len(self._flights) < self._pace.submitted(self._started)
        # An executor was lost: Spark may bring it back, but nobody waits for ever.
        self._short_since = self._short_since or time.monotonic()
        if time.monotonic() - self._short_since > self._plan.start_timeout_s:
            trial, need, slots = self._waiting.popleft(), self._plan.size, self._pace.slots
            error = (
                f"start deadline: {need} slots are needed, and for "
                f"{self._plan.start_timeout_s:g} s there are {slots.count} ({slots.reason}). "
                f"Before: {trial.error or 'it had not started'}"
            )
            failure = str(Failure.DEADLINE)
            self._conclude(trial, {"state": "FAILED", "failure": failure, "error": error})
        return False

    def _take(self) -> None:
        """Wait a moment for trials to end; write down what came out."""
        look_s = LOOK_S if storage.is_local(self.run.path) else LOOK_REMOTE_S
        for flight in self._flights.ended(look_s):
            self._land(flight)
            self._flights.landed(flight)

    def _look(self) -> None:
        """See what runs: starts, lost executors, output. Pass on what is to end."""
        for flight in self._flights:
            self._see_start(flight)
            if flight.trial.state == TrialState.RUNNING:  # Until then its log is an earlier one's.
                self._progress.look(flight.trial)
        states = [flight.trial.state for flight in self._flights]
        self._progress.counts(states.count(TrialState.RUNNING))
        limit = self._limits.timeout_s
        left = self._waiting or self._flights
        if limit and left and time.monotonic() - self._trials_begun > limit:
            self._stop(RunState.CANCELLED, f"timeout_s={limit:g} is over")
        self._flights.cancel(None if self._stopped else self._cancelled)

    def _see_start(self, flight: Flight) -> None:
        for attempt in self._flights.starts(flight):
            if attempt > flight.first:
                self._retries.again(flight.trial.number, Failure.LOST)
                self._lose(flight.trial, attempt - 1, "its executor was lost")
            self._started += 1
            self._record(flight.trial, {"state": "RUNNING", "attempt": attempt})
            self._progress.started(flight.trial, attempt)

    def _lose(self, trial: Trial, attempt: int, why: str) -> None:
        self._progress.look(trial, last=True)
        self._progress.say(f"[trial {trial.number}] {why}; it is run again")
        self._record(trial, {"state": "LOST", "attempt": attempt, "error": why})

    # ---- the end of a trial

    def _land(self, flight: Flight) -> None:
        self._see_start(flight)
        try:
            outcome, exception = combined(self._flights.rows_of(flight))
        except JobFailed as failed:
            self._land_failed(flight, failed)
            return
        if "preflight" in outcome:
            # An executor that came later than the preflight: the run cannot go on.
            self._fatal = PreflightError(f"trial {flight.trial.number}: {outcome['preflight']}")
            self._stop(RunState.FAILED, str(self._fatal))
            event: Event = {"state": "CANCELLED", "error": self._why_cancelled()}
            self._conclude(flight.trial, event)
            return
        used = outcome["usage"]
        in_job_s = time.monotonic() - flight.submitted_s
        queued_s = max(0.0, in_job_s - used["starting_s"] - used["running_s"])
        event = event_of(outcome, queued_s, self.run.metric)
        if event["state"] == "FAILED":
            flight.trial.exception = exception_of(exception, event["error"])
            self._fail(flight, event)
        else:
            flight.trial.exception = None
            self._conclude(flight.trial, event)

    def _land_failed(self, flight: Flight, failed: JobFailed) -> None:
        trial = flight.trial
        error = mask_text(str(failed), tuple(self._plan.env.values()))
        event: Event = {"error": error, "attempt": max(0, flight.seen)}
        if failed.end is JobEnd.CANCELLED:
            mine = self._stopped or trial.number in self._cancelled
            why = self._why_cancelled() if mine else "its Spark job was cancelled outside this run"
            self._conclude(trial, {**event, "state": "CANCELLED", "error": why})
            return
        trial.exception = exception_of(None, error)
        kinds = {JobEnd.LOST: Failure.LOST, JobEnd.MEMORY: Failure.MEMORY}
        kind = kinds.get(failed.end, Failure.EXCEPTION)
        if failed.end is JobEnd.ERROR:
            self._conclude(trial, {**event, "state": "FAILED", "failure": str(kind)})
        else:
            self._fail(flight, {**event, "state": "FAILED", "failure": str(kind)})

    def _fail(self, flight: Flight, event: Event) -> None:
        """Run a failed trial again where its budget allows; else that was its end."""
        trial, failure = flight.trial, event["failure"]
        lived_s = time.monotonic() - flight.submitted_s
        if self._stopped or not self._retries.again(trial.number, failure, lived_s):
            self._conclude(trial, event)
            return
        if failure == Failure.LOST:
            self._lose(trial, event["attempt"], event["error"].split("\n")[0])
        else:
            self._progress.look(trial, last=True)
        self._record(trial, {**event, "state": "WAITING"})
        self._waiting.append(trial)

    def _conclude(self, trial: Trial, event: Event) -> None:
        self._progress.look(trial, last=True)
        self._record(trial, event)
        error = TrialPaths(trial.path).error
        # Of a gang's ranks none knows which failed first; and Spark's own error no task writes.
        untold = trial.state == TrialState.FAILED and not storage.exists(error)
        if trial.error and (self._plan.is_gang or untold):
            storage.write(error, trial.error)
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

    def _stop_for(self, exc: BaseException) -> None:
        """End everything, as the driver cannot go on; the person's Ctrl-C is not a failure."""
        interrupted = isinstance(exc, KeyboardInterrupt)
        why = "interrupted" if interrupted else f"{exc}".split("\n")[0]
        self._stop(RunState.CANCELLED if interrupted else RunState.FAILED, why)
        self._abandon()

    def _drop_waiting(self) -> None:
        """Those that never started are written down as cancelled, all at once."""
        event = {"event": "trial", "state": "CANCELLED", "error": self._why_cancelled()}
        events = [{**event, "number": trial.number} for trial in self._waiting]
        self._waiting.clear()
        if events:
            self._opened.journal.write(events)
        for dropped in events:
            self.run.apply(dropped)

    def _why_cancelled(self) -> str:
        return f"{STOPPED}: {self._stopped[1]}" if self._stopped else "cancelled"

    def _abandon(self) -> None:
        """End everything that has not ended, whatever it is doing."""
        while self._waiting or self._flights:
            self._fill()
            self._flights.cancel()
            self._take()

    def _finish(self) -> None:
        self._flights.close()
        counts = self.run.counts()
        natural = RunState.CANCELLED
        if counts.get("COMPLETE"):
            natural = RunState.COMPLETE
        elif counts.keys() & {"FAILED", "INVALID"}:
            natural = RunState.FAILED
        state, reason = self._stopped or (natural, None)
        seconds = round(time.monotonic() - self._begun, 3)
        event = {"event": "end", "state": str(state), "reason": reason, "duration_s": seconds}
        self._opened.journal.write([event])
        self.run.apply(event)
        self._opened.owner.release()
