"""Runs on the driver. Runs the trials of a run on Spark, a job each; writes down what happened."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkdl import storage
from sparkdl.cluster.plan import Plan
from sparkdl.cluster.spark_errors import JobFailed
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.errors import PreflightError
from sparkdl.runner.concurrency import Pace
from sparkdl.runner.display.progress import MOST_LOGS, Progress
from sparkdl.runner.display.reports import Pages
from sparkdl.runner.outcome import conclude, conclude_failed_job
from sparkdl.runner.retries import Retries
from sparkdl.runner.stopping import Stops
from sparkdl.runner.submitted import SubmittedTrial, SubmittedTrials
from sparkdl.runner.trial_messages import Listener
from sparkdl.runs.idle_time import idle_now
from sparkdl.runs.journal import Event
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.opening import STOPPED, OpenRun
from sparkdl.runs.states import Failure, RunState, TrialState, natural_state
from sparkdl.runs.step_time import where_time_went
from sparkdl.runs.trial import Trial
from sparkdl.search.trial_source import Source

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
        stops: when to stop.
        progress, pages: show the person how it goes, and how it went.
        source: makes trials, beyond those that the run has.
    """

    def __init__(
        self,
        opened: OpenRun,
        plan: Plan,
        flights: SubmittedTrials,
        make_task: Callable[[Trial, int], TrialTask],
        pace: Pace,
        stops: Stops,
        progress: Progress,
        pages: Pages,
        source: Source,
    ) -> None:
        self.run = opened.run
        self._opened, self._plan, self._make_task = opened, plan, make_task
        self._pace, self._stops, self._progress, self._pages = pace, stops, progress, pages
        self._source, self._listener = source, Listener(source, opened.journal, plan.is_gang)
        self._waiting = deque(t for t in opened.run.trials if not t.state.is_final)
        self._flights, self._started = flights, 0
        self._is_local = storage.is_local(opened.run.path)
        self._cancelled: set[int] = set()
        self._retries = Retries(stops.limits, plan.is_gang)
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
                count = len(self._waiting) + self._source.left
                self._progress.announce(count, self._pace.limit, self._pace.slots)
                while self._has_more or self._flights:
                    self._fill()
                    self._take()
                    self._look()
        except BaseException as exc:
            self._stop_for(exc)
            raise
        finally:
            self._finish()
            self._progress.finished()
            self._pages.finished()
        if self._fatal:
            raise self._fatal
        self.run.raise_if_none_completed()

    @property
    def _has_more(self) -> bool:
        """Whether a trial waits, or may come."""
        return bool(self._waiting) or (not self._stopped and self._source.left > 0)

    def _fill(self) -> None:
        if self._stopped:
            self._drop_waiting()
        if self._has_more:
            self._pace.recount()
        while self._has_more and (self._is_over_before() or self._has_room()):
            trial = self._waiting.popleft() if self._waiting else self._source.next()
            if why := self._why_stopped(trial):
                self._conclude(trial, why)
            else:
                wanted = min(len(self._waiting) + self._source.left, self._pace.limit)
                cores = self._pace.cores(int(wanted) + len(self._flights) + 1)
                self._flights.submit(trial, self._make_task(trial, cores))

    def _is_over_before(self) -> bool:
        """Whether the next trial needs no room, as it will not run."""
        return bool(self._waiting) and self._why_stopped(self._waiting[0]) is not None

    def _has_room(self) -> bool:
        short_s = self._pace.short_s() if self._plan.is_gang else 0.0
        if not short_s:
            return len(self._flights) < self._pace.submitted(self._started)
        # An executor was lost: Spark may bring it back, but nobody waits for ever.
        if short_s > self._plan.start_timeout_s:
            why = f"start deadline: {self._pace.too_few(self._plan.start_timeout_s)}"
            if self.run.is_search:  # No fault of any of its trials: it can be resumed.
                self._stop(RunState.FAILED, why)
            else:
                trial, kind = self._waiting.popleft(), str(Failure.DEADLINE)
                error = f"{why} Before: {trial.error or 'it had not started'}"
                self._conclude(trial, {"state": "FAILED", "failure": kind, "error": error})
        return False

    def _take(self) -> None:
        """Wait a moment for trials to end; write down what came out."""
        look_s = LOOK_S if self._is_local else LOOK_REMOTE_S
        if ended := self._flights.ended(self._listener.look_s(look_s)):
            self._see_starts()
        for flight in ended:
            self._land(flight)
            self._flights.forget(flight)

    def _look(self) -> None:
        """See what runs: starts, lost executors, output. Pass on what is to end."""
        self._see_starts()
        # Until a trial runs, its log is an earlier one's.
        running = [f.trial for f in self._flights if f.trial.state == TrialState.RUNNING]
        if self._progress.shown or self._source.prunes or self._source.asks:
            self._listener.listen(running)
        for trial in running if self._is_local else running[:MOST_LOGS]:  # A request each.
            self._progress.look(trial)
        self._progress.counts(running, self._listener.newest, self._listener.steps)
        lasted_s = time.monotonic() - self._trials_begun
        if (enough := self._stops.used_up(running, lasted_s)) and (self._has_more or self._flights):
            self._stop(*enough)
        over = self._cancelled | self._listener.overdue()
        self._flights.cancel(None if self._stopped else over)

    def _see_starts(self) -> None:
        for flight, attempt in self._flights.starts():
            if attempt > flight.first:
                self._retries.again(flight.trial.number, Failure.LOST)
                self._lose(flight.trial, attempt - 1, "its executor was lost")
            self._started += 1
            self._listener.forget(flight.trial)
            self._record(flight.trial, {"state": "RUNNING", "attempt": attempt})
            self._progress.started(flight.trial, attempt)

    def _lose(self, trial: Trial, attempt: int, why: str) -> None:
        self._progress.look(trial, last=True)
        self._progress.say(f"[trial {trial.number}] {why}; it is run again")
        self._record(trial, {"state": "LOST", "attempt": attempt, "error": why})

    # ---- the end of a trial

    def _land(self, flight: SubmittedTrial) -> None:
        trial = flight.trial
        self._listener.listen([trial], ended=True)
        stopped = self._why_stopped(trial)
        try:
            outcomes = self._flights.outcomes_of(flight)
        except JobFailed as failed:
            secrets = tuple(self._plan.env.values())
            landing = conclude_failed_job(failed, flight.seen, secrets, stopped)
        else:
            in_job_s = time.monotonic() - flight.submitted_s
            metrics: list[str | None] = [*self.run.objectives] or [self.run.metric]
            required = self.run.is_search
            landing = conclude(outcomes, trial.number, in_job_s, metrics, required)
        trial.exception = landing.exception
        event = landing.event
        if landing.fatal:
            # An executor that came later than the preflight: the run cannot go on.
            self._fatal = landing.fatal
            self._stop(RunState.FAILED, str(landing.fatal))
            event = {"state": "CANCELLED", "error": self._why_cancelled()}
        if event["state"] == "FAILED" and landing.may_retry:
            self._fail(flight, event)
        else:
            self._conclude(trial, event)

    def _why_stopped(self, trial: Trial) -> Event | None:
        """What is written of it if its job was cancelled by us."""
        if self._listener.is_stopped(trial):
            return {"state": "PRUNED", "error": None}
        if self._stopped or trial.number in self._cancelled:
            return {"state": "CANCELLED", "error": self._why_cancelled()}
        return None

    def _fail(self, flight: SubmittedTrial, event: Event) -> None:
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
        self._listener.forget(trial)
        self._source.again(trial, failure)
        self._waiting.append(trial)

    def _conclude(self, trial: Trial, event: Event) -> None:
        self._progress.look(trial, last=True)
        self._record(trial, {"metrics": trial.metrics, **event})  # Unless it said them itself.
        error = TrialPaths(trial.path).error
        # Of a gang's ranks none knows which failed first; and Spark's own error no task writes.
        untold = trial.state == TrialState.FAILED and not storage.exists(error)
        if trial.error and (self._plan.is_gang or untold):
            storage.write(error, trial.error)
        self._listener.ended(trial)
        self._source.ended(trial)
        self._progress.ended(trial)
        self._pages.ended(trial)
        if enough := self._stops.ended(trial):
            self._stop(*enough)

    def _record(self, trial: Trial, event: Event) -> None:
        self._opened.record({"event": "trial", "number": trial.number, **event})

    # ---- the end of the run

    def _stop(self, state: RunState, reason: str) -> None:
        self._stopped = self._stopped or (state, reason)

    def _stop_for(self, exc: BaseException) -> None:
        """End everything, as the driver cannot go on; the person's Ctrl-C is not a failure."""
        interrupted = isinstance(exc, KeyboardInterrupt)
        why = "interrupted" if interrupted else f"{exc}".split("\n")[0]
        self._stop(RunState.CANCELLED if interrupted else RunState.FAILED, why)
        self._source = Source()  # It may be what cannot go on.
        self._listener = Listener(self._source, self._opened.journal, self._plan.is_gang)
        self._abandon()

    def _drop_waiting(self) -> None:
        """Those that never started are written down as cancelled, all at once."""
        event = {"event": "trial", "state": "CANCELLED", "error": self._why_cancelled()}
        if events := [{**event, "number": trial.number} for trial in self._waiting]:
            self._waiting.clear()
            self._opened.record(*events)

    def _why_cancelled(self) -> str:
        return f"{STOPPED}: {self._stopped[1]}" if self._stopped else "cancelled"

    def _abandon(self) -> None:
        """End everything that has not ended, whatever it is doing."""
        while self._has_more or self._flights:
            self._fill()
            self._flights.cancel()
            self._take()

    def _finish(self) -> None:
        self._flights.close()
        state, reason = self._stopped or (RunState.COMPLETE, "")
        state = natural_state(self.run.counts()) if state == RunState.COMPLETE else state
        event: Event = {"event": "end", "state": str(state), "reason": reason or None}
        event["duration_s"] = round(time.monotonic() - self._begun, 3)
        lasted_s = time.monotonic() - self._trials_begun
        event["idle"] = idle_now(self.run.trials, self._pace.limit, lasted_s)
        event["timeline"] = where_time_went(self.run) if self._plan.timeline else None
        self._opened.record(event)
        self._opened.owner.release()
