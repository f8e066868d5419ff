"""Runs on the driver. The loop of a run: submit trials, follow them, record how they end."""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from sparkdl.cluster.spark_errors import JobEnd, job_failed
from sparkdl.polling import poll_s
from sparkdl.runner.bad_executors import BadExecutors, EndedAttempt
from sparkdl.runner.commands import RunCommands
from sparkdl.runner.control import Control
from sparkdl.runner.display.harmless import tolerated
from sparkdl.runner.display.progress import Progress
from sparkdl.runner.notices import Notices
from sparkdl.runner.observers import Observers, RunObserver
from sparkdl.runner.paused_trials import PausedTrials
from sparkdl.runner.prepare import PreparedRun
from sparkdl.runner.retries import Retries
from sparkdl.runner.run_end import conclusion_of, finish_run, settle_files
from sparkdl.runner.stop_orders import TAKEN_OVER, StopOrders, no_slots_event
from sparkdl.runner.stopping import Stopping
from sparkdl.runner.submitted import SubmittedTrial, SubmittedTrials
from sparkdl.runner.task_factory import TaskFactory
from sparkdl.runner.trial_messages import TrialMessages
from sparkdl.runs.control import Command
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.retry import OUTSIDE
from sparkdl.runs.states import Failure, RunState, TrialState
from sparkdl.runs.trial import Trial
from sparkdl.search.trial_source import TrialSource

__all__ = ["TrialLoop"]

LOCAL_POLL_S = 0.2
REMOTE_POLL_S = 3.0


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
        outlives_program: the main thread of the program ended before the run did.
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
        self.outlives_program = False
        self._opened = opened
        self._plan = plan
        self._concurrency = prepared.concurrency
        self._progress = progress
        self._observers = Observers([progress, *observers])
        self._notices = Notices(prepared.cluster, progress.say)
        self._source = source
        self._messages = TrialMessages(source, opened.journal, plan.is_gang)
        self._waiting = deque(t for t in run.trials if t.state == TrialState.WAITING)
        num_trials = len(self._waiting) + source.num_left
        self._tasks = TaskFactory(prepared, opened, source, num_trials)
        self._release_program = prepared.cluster.share(prepared.program)
        self._submitted = SubmittedTrials.of(prepared, opened.paths, num_trials)
        self._prepared = prepared
        self._bad_executors = BadExecutors(prepared.cluster, self, opened.record, progress.say)
        self._retries = Retries(request.options, plan.is_gang)
        rules = (request.options, request.search, run.directions, plan.size)
        self._stopping = Stopping(*rules, run.trials, opened.earlier)
        self._num_started = 0
        self._orders = StopOrders(self._stopping.reached)
        self._paused = PausedTrials(opened, source, self._orders, self._stopping)
        self._begun_s = self._trials_begun_s = time.monotonic()
        own = (self._orders, self._stopping, self._waiting, self._submitted)
        self._commands = RunCommands(prepared, opened, source, *own, self._elapsed_s, progress.say)
        self._control = Control(opened, self._commands.perform, self._submitted.wake)
        opened.owner.when_taken_over(lambda: self.stop(RunState.FAILED, TAKEN_OVER))

    def stop(self, state: RunState, reason: str) -> None:
        """Let the run end soon, in this state and for this reason."""
        self._orders.end_run(state, reason)
        self._submitted.wake()

    @property
    def has_more(self) -> bool:
        """True if a trial waits, or the source may propose one."""
        return bool(self._waiting) or (not self._orders.run and self._source.num_left > 0)

    def cancel(self, number: int | None) -> None:
        """Cancel one trial, or with None all trials that have not finished."""
        if number is None:
            self._orders.end_run(RunState.CANCELLED, "cancelled")
        elif not self.run.trials[number].state.is_final:
            self._orders.cancelled.add(number)
        else:
            return
        # The caller need not wait until the loop has recorded this.
        self._control.post(Command("cancel", {} if number is None else {"trial": number}))

    def control(self, command: Command) -> None:
        """Carry out a command, see `Control.call`."""
        self._control.call(command)

    def _elapsed_s(self) -> float:
        """Return the seconds since the first trial was submitted."""
        return time.monotonic() - self._trials_begun_s

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Record the end of the run if the block, which comes before the trials, raises."""
        try:
            yield
        except BaseException as exc:
            try:
                self._stop_for(exc)
            finally:
                with tolerated("record the end of the run"):
                    self._finish()
            raise

    def execute(self) -> None:
        """Run until every trial has ended or something stops the run.

        Raises:
            RunStoppedError, AllTrialsFailedError, TrainingFailedError: if the run is not COMPLETE
                in the end.
            PreflightError: if an executor cannot run the trials.
            KeyboardInterrupt: after the run was stopped cleanly.
        """
        try:
            with self.failing(), self._progress:
                self._trials_begun_s = time.monotonic()
                limits = (self._concurrency.limit, self._concurrency.slots)
                self._progress.announce(len(self._waiting) + self._source.num_left, *limits)
                while self._goes_on():
                    self._fill()
                    self._take()
                    self._follow()
                    self._paused.end(self._conclude)
                self._paused.end(self._conclude, is_over=True)
            self._finish()
        finally:
            self._observers.run_ended()
        if self._orders.fatal:
            raise self._orders.fatal
        self.run.raise_unless_complete()

    def look(self) -> bool:
        """Carry out commands before the loop; return False if the run was ordered to end."""
        self._control.take()
        return not self._orders.run

    def _goes_on(self) -> bool:
        """Carry out the commands of users; return False after the last trial."""
        self._control.take(in_loop=True)
        return self.has_more or bool(self._submitted) or bool(self._bad_executors)

    # ---- submitting trials

    def _fill(self) -> None:
        """Submit trials until there is no more room."""
        if self._orders.run:
            self._drop_waiting()
        if self.has_more:
            with suppress(Exception):  # A Spark that has ended lets the next job say so.
                self._concurrency.recount()
        while self.has_more and (self._waiting or self._source.is_ready) and self._has_room():
            if not self._waiting:
                self._waiting.append(self._source.next())
            trial = self._waiting[0]
            if event := self._stop_event(trial):
                self._conclude(trial, event)
            elif not self._submit(trial):
                return
            self._waiting.popleft()  # Not before: what raises leaves no trial behind.

    def _submit(self, trial: Trial) -> bool:
        """Hand a trial to the cluster; return False, and end the run, if Spark has ended."""
        num_left = len(self._waiting) + self._source.num_left
        at_once = int(min(self._concurrency.limit, num_left + len(self._submitted)))
        try:
            avoid = self._bad_executors.avoided(trial.number)
            self._submitted.submit(trial, self._tasks.make(trial, at_once, avoid))
        except Exception as exc:
            failed = job_failed(exc)
            if failed.end is not JobEnd.SPARK_ENDED:
                raise
            self._orders.end_run(RunState.CANCELLED, f"Spark has ended: {failed}")
            return False
        return True

    def _has_room(self) -> bool:
        if self._waiting and self._stop_event(self._waiting[0]):
            return True  # A trial that was cancelled needs no room.
        if self._commands.is_paused:
            return False
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
        why = f"start deadline: {self._concurrency.shortage(self._plan.start_timeout_s)}"
        if self.run.is_search:  # No trial is to blame, and the search can be resumed.
            self._orders.end_run(RunState.FAILED, why)
            return
        trial = self._waiting.popleft()
        self._conclude(trial, no_slots_event(trial, why))

    # ---- following running trials

    def _take(self) -> None:
        """Wait a moment for attempts to end, and record what came out of them."""
        wait_s = self._messages.poll_s(poll_s(self.run.path, LOCAL_POLL_S, REMOTE_POLL_S))
        if ended := self._submitted.ended(wait_s):
            self._record_starts()
            self._messages.read_last([submitted.trial for submitted in ended])
        for submitted in ended:
            self._end_attempt(submitted)
        may_start = self.has_more and not self._concurrency.others_wait()
        is_last = bool(self._orders.run) or not (self._submitted or may_start)
        self._bad_executors.look(self._orders.numbers, is_last)

    def _follow(self) -> None:
        """Record starts and losses, show output, and cancel the trials that must end."""
        self._record_starts()
        # The log of a trial that has not started yet is that of an earlier attempt.
        running = [s.trial for s in self._submitted if s.trial.state == TrialState.RUNNING]
        if self._progress.shown or self._source.prunes or self._source.answers_requests:
            self._messages.read(running)
        self._notices.look(self._submitted, self._messages)
        self._progress.show_outputs(running)
        self._progress.show_counts(running, self._messages.newest, self._messages.steps)
        stop = self._stopping.used_up(running, self._elapsed_s())
        if stop and (self.has_more or self._submitted):
            self._orders.end_run(*stop)
        overdue = self._orders.numbers | self._messages.overdue()
        self._submitted.cancel(None if self._orders.run else overdue)

    def _record_starts(self) -> None:
        for submitted, attempt in self._submitted.starts():
            trial = submitted.trial
            if attempt > submitted.first:  # Spark has repeated the task by itself.
                if not self._retries.allow(trial.number, Failure.LOST):
                    self._orders.give_up(trial.number, self._prepared.request.options.max_losses)
                    continue
                self._record_loss(trial, attempt - 1, "its executor was lost")
            self._num_started += 1
            self._messages.trial_started(trial, attempt)
            state = TrialState.RUNNING
            self._opened.record(TrialChanged(number=trial.number, state=state, attempt=attempt))
            self._observers.trial_started(trial, attempt)

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
        if trial.state.is_final:  # Recorded, but the loop was interrupted then.
            self._submitted.forget(trial.number)
            return
        stopped, options = self._stop_event(trial), self._prepared.request.options
        conclusion = conclusion_of(
            submitted, self._submitted, self.run, stopped, options.trial_value, self._plan.secrets
        )
        trial.exception = conclusion.exception
        event = self._orders.attempt_ended(trial, conclusion)
        is_recalled = conclusion.is_outside and submitted.is_recalled and not submitted.has_started
        is_avoided = conclusion.is_avoided and self._bad_executors.run_anywhere(trial.number)
        if is_recalled or ((conclusion.needs_rows or is_avoided) and not self._orders.run):
            self._commands.wait_again(trial)
            return
        failure = OUTSIDE if conclusion.is_outside else event.failure or str(Failure.EXCEPTION)
        ended = EndedAttempt(submitted, event, failure if conclusion.may_retry else "")
        if self._orders.run or not self._bad_executors.takes(ended):
            self.settle(ended)
        self._submitted.forget(trial.number)

    def settle(self, ended: EndedAttempt) -> None:
        """Let the end of an attempt count: run the trial again if that may help."""
        submitted, event, failure = ended.submitted, ended.event, ended.failure
        is_failure = (event.state == TrialState.FAILED and failure) or failure == OUTSIDE
        if is_failure and not self._orders.run and self._retries.allow_after(submitted, failure):
            self._retry(submitted, event, failure)
        else:
            self._conclude(submitted.trial, event)

    def run_elsewhere(self, ended: EndedAttempt) -> None:
        """Run a trial again, before all that wait, as its executor may be at fault."""
        self._retry(ended.submitted, ended.event, ended.failure)
        self._waiting.appendleft(self._waiting.pop())

    def _stop_event(self, trial: Trial) -> TrialChanged | None:
        """Return the event of a trial that was ordered to end; None for any other trial."""
        if self._messages.is_stopped(trial):
            return TrialChanged(number=trial.number, state=TrialState.PRUNED)
        return self._orders.event_of(trial)

    def _retry(self, submitted: SubmittedTrial, event: TrialChanged, failure: str) -> None:
        trial = submitted.trial
        if failure in (Failure.LOST, OUTSIDE):
            # A trial whose job was cancelled goes on from its checkpoint, as after a loss.
            event = replace(event, failure=str(Failure.LOST))
            self._record_loss(trial, event.attempt or 0, (event.error or "").split("\n")[0])
        else:
            self._progress.show_output(trial, last=True)
        self._opened.record(replace(event, state=TrialState.WAITING))
        self._submitted.forget(trial.number)
        self._waiting.append(trial)
        self._messages.attempt_ended(trial)
        self._source.restarted(trial, failure)

    def _conclude(self, trial: Trial, event: TrialChanged) -> None:
        """Record the final event of a trial, once, and let all observers know."""
        self._progress.show_output(trial, last=True)
        if event.metrics is None:  # Its task did not return them.
            event = replace(event, metrics=trial.metrics)
        self._submitted.forget(trial.number)
        if self._paused.takes(trial, event):
            self._messages.trial_ended(trial)
            return
        self._opened.record(event)
        if event.note:
            self._progress.say(f"[trial {trial.number}] Note: {event.note}")
        settle_files(trial, self._prepared)
        self._messages.trial_ended(trial)
        self._source.ended(trial)
        self._observers.trial_ended(trial)
        if stop := self._stopping.trial_ended(trial):
            self._orders.end_run(*stop)

    # ---- the end of the run

    def _stop_for(self, exc: BaseException) -> None:
        """End everything, as the driver cannot go on; Ctrl-C of the user is not a failure."""
        is_interrupt = isinstance(exc, KeyboardInterrupt)
        why = "interrupted" if is_interrupt else f"{exc}".split("\n")[0]
        self._orders.end_run(RunState.CANCELLED if is_interrupt else RunState.FAILED, why)
        # The source may be what has raised.
        self._source = TrialSource()
        self._messages = TrialMessages(self._source, self._opened.journal, self._plan.is_gang)
        self._abandon()

    def _drop_waiting(self) -> None:
        """Record all trials that have never started as cancelled, in one write."""
        if events := [self._orders.cancelled_event(trial) for trial in self._waiting]:
            self._waiting.clear()
            self._opened.record(*events)

    def _abandon(self) -> None:
        """Cancel everything that has not ended, then record the ends; each step is tried."""
        self._submitted.cancel()
        while self._bad_executors:
            with tolerated("record the ends of trials that have failed"):
                self._bad_executors.release()
        with tolerated("record that waiting trials are cancelled"):
            self._drop_waiting()
        self._submitted.abandon(self._messages.read_last, self._end_attempt)

    def _finish(self) -> None:
        """Record the end of the run and give up its ownership."""
        self._control.close()
        self.outlives_program = not threading.main_thread().is_alive()
        self._submitted.close()
        self._prepared.release_rows()
        self._release_program()
        state, reason = self._orders.outcome(self.run.trials)
        duration_s = round(time.monotonic() - self._begun_s, 3)
        event = RunEnded(state=state, reason=reason, duration_s=duration_s)
        limit, elapsed_s = self._concurrency.limit, self._elapsed_s()
        finish_run(self._opened, event, limit, elapsed_s, self._plan.timeline)
