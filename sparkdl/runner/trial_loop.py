"""Runs on the driver. The loop of a run: submit trials, follow them, record how they end."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from sparkdl import storage
from sparkdl.cluster.spark_errors import JobFailed
from sparkdl.errors import PreflightError
from sparkdl.polling import Outages, poll_s
from sparkdl.runner.display.progress import MAX_LOGS, Progress
from sparkdl.runner.outcome import Conclusion, conclude, conclude_failed_job, with_best_value
from sparkdl.runner.prepare import PreparedRun
from sparkdl.runner.retries import Retries
from sparkdl.runner.stopping import Stopping
from sparkdl.runner.submitted import SubmittedTrial, SubmittedTrials
from sparkdl.runner.task_factory import TaskFactory
from sparkdl.runner.trial_messages import TrialMessages
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.idle_time import idle_now
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.opening import STOPPED, OpenRun
from sparkdl.runs.states import Failure, RunState, TrialState, natural_state
from sparkdl.runs.step_time import where_time_went
from sparkdl.runs.trial import Trial
from sparkdl.search.trial_source import TrialSource

__all__ = ["RunObserver", "TrialLoop"]

LOCAL_POLL_S = 0.2
REMOTE_POLL_S = 3.0


class RunObserver(Protocol):
    """An object that follows a run, for example to display the run."""

    def trial_started(self, trial: Trial, attempt: int) -> None:
        """Process the start of an attempt at a trial."""

    def trial_ended(self, trial: Trial) -> None:
        """Process the end of a trial, after its last attempt."""

    def run_ended(self) -> None:
        """Process the end of the run."""


class TrialLoop:
    """The loop that runs the trials of one run to the end.

    Args:
        prepared: the request, its plan and the cluster.
        opened: the run directory.
        source: proposes trials, beyond those that the run already has.
        progress: displays the run.
        observers: further objects that follow the run.

    Attributes:
        run: the run.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        opened: OpenRun,
        source: TrialSource,
        progress: Progress,
        observers: Sequence[RunObserver] = (),
    ) -> None:
        run, plan, request = opened.run, prepared.plan, prepared.request
        self.run = run
        self._opened = opened
        self._plan = plan
        self._concurrency = prepared.concurrency
        self._progress = progress
        self._observers: list[RunObserver] = [progress, *observers]
        self._source = source
        self._messages = TrialMessages(source, opened.journal, plan.is_gang)
        self._tasks = TaskFactory(prepared, opened, source)
        self._waiting = deque(trial for trial in run.trials if not trial.state.is_final)
        num_trials = len(self._waiting) + source.num_left
        self._release_program = prepared.cluster.share(prepared.program)
        self._submitted = SubmittedTrials(
            prepared.cluster, plan, request.topology, opened.paths, prepared.rows(num_trials)
        )
        self._takes_best = request.options.trial_value == "best"
        self._prepared = prepared
        self._retries = Retries(request.options, plan.is_gang)
        ended = [trial for trial in run.trials if trial.state.is_final]
        self._stopping = Stopping(request.options, request.search, run.directions, plan.size, ended)
        self._num_started = 0
        self._cancelled: set[int] = set()
        self._stopped: tuple[RunState, str] | None = None
        self._fatal: PreflightError | None = None
        self._is_local = storage.is_local(run.path)
        self._begun_s = time.monotonic()
        self._trials_begun_s = self._begun_s
        self._outages = Outages("write the error of a trial")
        opened.owner.when_taken_over(self._be_taken_over)

    def _be_taken_over(self) -> None:
        self._stop(RunState.FAILED, "another driver has taken over this run")
        self._submitted.wake()

    def cancel(self, number: int | None) -> None:
        """Cancel one trial, or with None all trials that have not finished."""
        if number is None:
            self._stop(RunState.CANCELLED, "cancelled")
        else:
            self._cancelled.add(number)
        self._submitted.wake()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Record the end of the run if the block, which comes before the trials, raises."""
        try:
            yield
        except BaseException as exc:
            self._stop_for(exc)
            self._finish()
            raise

    def execute(self) -> None:
        """Run until every trial has ended or something stops the run.

        Raises:
            AllTrialsFailedError, TrainingFailedError: if no trial completed.
            PreflightError: if an executor cannot run the trials.
            KeyboardInterrupt: after the run was stopped cleanly.
        """
        try:
            with self._progress:
                self._trials_begun_s = time.monotonic()
                num_trials = len(self._waiting) + self._source.num_left
                self._progress.announce(
                    num_trials, self._concurrency.limit, self._concurrency.slots
                )
                while self._has_more or self._submitted:
                    self._fill()
                    self._take()
                    self._follow()
        except BaseException as exc:
            self._stop_for(exc)
            raise
        finally:
            self._finish()
            for observer in self._observers:
                observer.run_ended()
        if self._fatal:
            raise self._fatal
        self.run.raise_if_none_completed()

    @property
    def _has_more(self) -> bool:
        """True if a trial waits, or the source may propose one."""
        return bool(self._waiting) or (not self._stopped and self._source.num_left > 0)

    # ---- submitting trials

    def _fill(self) -> None:
        """Submit trials until there is no more room."""
        if self._stopped:
            self._drop_waiting()
        if self._has_more:
            self._concurrency.recount()
        while self._has_more and (self._next_is_stopped() or self._has_room()):
            trial = self._waiting.popleft() if self._waiting else self._source.next()
            if event := self._stop_event(trial):
                self._conclude(trial, event)
            else:
                num_coming = min(
                    len(self._waiting) + self._source.num_left, self._concurrency.limit
                )
                cores = self._concurrency.cores(int(num_coming) + len(self._submitted) + 1)
                self._submitted.submit(trial, self._tasks.make(trial, cores))

    def _next_is_stopped(self) -> bool:
        """Return True if the next trial needs no room, as it was cancelled."""
        return bool(self._waiting) and self._stop_event(self._waiting[0]) is not None

    def _has_room(self) -> bool:
        short_s = self._concurrency.short_s() if self._plan.is_gang else 0.0
        if not short_s:
            num_running = sum(s.trial.state == TrialState.RUNNING for s in self._submitted)
            most = self._concurrency.max_submitted(self._num_started, num_running)
            return len(self._submitted) < most
        if short_s > self._plan.start_timeout_s:
            self._give_up_on_slots()
        return False

    def _give_up_on_slots(self) -> None:
        """End the next trial, or a whole search: a gang has not got its slots for too long."""
        shortage = self._concurrency.shortage(self._plan.start_timeout_s)
        why = f"start deadline: {shortage}"
        if self.run.is_search:  # No trial is to blame, and the search can be resumed.
            self._stop(RunState.FAILED, why)
            return
        trial = self._waiting.popleft()
        error = f"{why} Before: {trial.error or 'it had not started'}"
        self._conclude(
            trial,
            TrialChanged(
                number=trial.number,
                state=TrialState.FAILED,
                error=error,
                failure=str(Failure.DEADLINE),
            ),
        )

    # ---- following running trials

    def _take(self) -> None:
        """Wait a moment for attempts to end, and record what came out of them."""
        default_s = poll_s(self.run.path, LOCAL_POLL_S, REMOTE_POLL_S)
        if ended := self._submitted.ended(self._messages.poll_s(default_s)):
            self._record_starts()
        for submitted in ended:
            self._end_attempt(submitted)
            self._submitted.forget(submitted)

    def _follow(self) -> None:
        """Record starts and losses, show output, and cancel the trials that must end."""
        self._record_starts()
        # The log of a trial that has not started yet is that of an earlier attempt.
        running = [s.trial for s in self._submitted if s.trial.state == TrialState.RUNNING]
        if self._progress.shown or self._source.prunes or self._source.answers_requests:
            self._messages.read(running)
        # On a remote store, each log costs a request.
        for trial in running if self._is_local else running[:MAX_LOGS]:
            self._progress.show_output(trial)
        self._progress.show_counts(running, self._messages.newest, self._messages.steps)
        elapsed_s = time.monotonic() - self._trials_begun_s
        if (stop := self._stopping.used_up(running, elapsed_s)) and (
            self._has_more or self._submitted
        ):
            self._stop(*stop)
        overdue = self._cancelled | self._messages.overdue()
        self._submitted.cancel(None if self._stopped else overdue)

    def _record_starts(self) -> None:
        for submitted, attempt in self._submitted.starts():
            trial = submitted.trial
            if attempt > submitted.first:  # Spark has repeated the task by itself.
                self._retries.allow(trial.number, Failure.LOST)
                self._record_loss(trial, attempt - 1, "its executor was lost")
            self._num_started += 1
            self._messages.trial_started(trial, attempt)
            self._opened.record(
                TrialChanged(number=trial.number, state=TrialState.RUNNING, attempt=attempt)
            )
            for observer in self._observers:
                observer.trial_started(trial, attempt)

    def _record_loss(self, trial: Trial, attempt: int, why: str) -> None:
        self._progress.show_output(trial, last=True)
        self._progress.say(f"[trial {trial.number}] {why}; it is run again")
        self._opened.record(
            TrialChanged(number=trial.number, state=TrialState.LOST, attempt=attempt, error=why)
        )

    # ---- the end of an attempt

    def _end_attempt(self, submitted: SubmittedTrial) -> None:
        """Record how an attempt has ended, and run the trial again if that may help."""
        trial = submitted.trial
        self._messages.read([trial], ended=True)
        conclusion = self._conclusion_of(submitted)
        trial.exception = conclusion.exception
        event = conclusion.event
        if conclusion.fatal:
            # An executor that joined after the preflight cannot run trials.
            self._fatal = conclusion.fatal
            self._stop(RunState.FAILED, str(conclusion.fatal))
            event = self._cancelled_event(trial)
        if event.state == TrialState.FAILED and conclusion.may_retry:
            self._retry_or_conclude(submitted, event)
        else:
            self._conclude(trial, event)

    def _conclusion_of(self, submitted: SubmittedTrial) -> Conclusion:
        trial = submitted.trial
        stopped = self._stop_event(trial)
        try:
            outcomes = self._submitted.outcomes_of(submitted)
        except JobFailed as failed:
            secrets = self._plan.secrets
            return conclude_failed_job(failed, trial.number, submitted.seen, secrets, stopped)
        in_job_s = time.monotonic() - submitted.submitted_s
        metrics: list[str | None] = [*self.run.objectives] or [self.run.metric]
        conclusion = conclude(outcomes, trial.number, in_job_s, metrics, self.run.is_search)
        if self._takes_best:
            return with_best_value(conclusion, trial.reported_values(), self.run.direction)
        return conclusion

    def _stop_event(self, trial: Trial) -> TrialChanged | None:
        """Return the event of a trial that was ordered to end; None for any other trial."""
        if self._messages.is_stopped(trial):
            return TrialChanged(number=trial.number, state=TrialState.PRUNED)
        if self._stopped or trial.number in self._cancelled:
            return self._cancelled_event(trial)
        return None

    def _cancelled_event(self, trial: Trial) -> TrialChanged:
        why = self._why_cancelled()
        return TrialChanged(number=trial.number, state=TrialState.CANCELLED, error=why)

    def _retry_or_conclude(self, submitted: SubmittedTrial, event: TrialChanged) -> None:
        trial, failure = submitted.trial, event.failure or str(Failure.EXCEPTION)
        lived_s = time.monotonic() - submitted.submitted_s
        if self._stopped or not self._retries.allow(trial.number, failure, lived_s):
            self._conclude(trial, event)
            return
        if failure == Failure.LOST:
            self._record_loss(trial, event.attempt or 0, (event.error or "").split("\n")[0])
        else:
            self._progress.show_output(trial, last=True)
        self._opened.record(replace(event, state=TrialState.WAITING))
        self._messages.attempt_ended(trial)
        self._source.restarted(trial, failure)
        self._waiting.append(trial)

    def _conclude(self, trial: Trial, event: TrialChanged) -> None:
        """Record the final event of a trial and let all observers know."""
        self._progress.show_output(trial, last=True)
        if event.metrics is None:
            # The last reported metrics, for a trial whose task did not return them.
            event = replace(event, metrics=trial.metrics)
        self._opened.record(event)
        # No rank of a gang knows which rank failed first, and no task sees an error of Spark.
        error = TrialPaths(trial.path).error
        with self._outages.tolerated():  # The journal has the error, too.
            is_missing = trial.state == TrialState.FAILED and not storage.exists(error)
            if trial.error and (self._plan.is_gang or is_missing):
                storage.write(error, trial.error)
        self._messages.trial_ended(trial)
        self._source.ended(trial)
        for observer in self._observers:
            observer.trial_ended(trial)
        if stop := self._stopping.trial_ended(trial):
            self._stop(*stop)

    # ---- the end of the run

    def _stop(self, state: RunState, reason: str) -> None:
        self._stopped = self._stopped or (state, reason)

    def _stop_for(self, exc: BaseException) -> None:
        """End everything, as the driver cannot go on; Ctrl-C of the user is not a failure."""
        is_interrupt = isinstance(exc, KeyboardInterrupt)
        why = "interrupted" if is_interrupt else f"{exc}".split("\n")[0]
        self._stop(RunState.CANCELLED if is_interrupt else RunState.FAILED, why)
        # The source may be what has raised.
        self._source = TrialSource()
        self._messages = TrialMessages(self._source, self._opened.journal, self._plan.is_gang)
        self._abandon()

    def _drop_waiting(self) -> None:
        """Record all trials that have never started as cancelled, in one write."""
        if events := [self._cancelled_event(trial) for trial in self._waiting]:
            self._waiting.clear()
            self._opened.record(*events)

    def _why_cancelled(self) -> str:
        return f"{STOPPED}: {self._stopped[1]}" if self._stopped else "cancelled"

    def _abandon(self) -> None:
        """Cancel everything that has not ended, and wait for the ends."""
        while self._has_more or self._submitted:
            self._submitted.cancel()
            self._fill()
            self._take()

    def _finish(self) -> None:
        """Record the end of the run and give up its ownership."""
        self._submitted.close()
        self._prepared.release_rows()
        self._release_program()
        state, reason = self._stopped or (RunState.COMPLETE, "")
        state = natural_state(self.run.counts()) if state == RunState.COMPLETE else state
        now_s = time.monotonic()
        running_s = now_s - self._trials_begun_s
        duration_s = round(now_s - self._begun_s, 3)
        event = RunEnded(state=state, reason=reason or None, duration_s=duration_s)
        try:
            idle = idle_now(self.run.trials, self._concurrency.limit, running_s)
            timeline = where_time_went(self.run) if self._plan.timeline else None
            event = replace(event, idle=idle, timeline=timeline)
        finally:
            self._opened.close(event)
