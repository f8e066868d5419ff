"""Runs on the driver. The loop of a run: submit trials, follow them, record how they end."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from sparkdl.cluster.spark_errors import JobEnd, job_failed
from sparkdl.files.polling import poll_s
from sparkdl.runner.display.progress import Progress
from sparkdl.runner.harmless import tolerated
from sparkdl.runner.loop.attempt_ends import AttemptEnds
from sparkdl.runner.loop.command_inbox import CommandInbox
from sparkdl.runner.loop.executor_exclusion import ExecutorExclusion
from sparkdl.runner.loop.idle_time import idle_now
from sparkdl.runner.loop.leaving_executors import LeavingExecutors
from sparkdl.runner.loop.observers import Observers
from sparkdl.runner.loop.paused_trials import PausedTrials
from sparkdl.runner.loop.retries import Retries
from sparkdl.runner.loop.run_commands import RunCommands
from sparkdl.runner.loop.step_time import where_time_went
from sparkdl.runner.loop.stop_requests import TAKEN_OVER, StopRequests, no_slots_event
from sparkdl.runner.loop.stop_rules import StopRules
from sparkdl.runner.loop.submitted import SubmittedTrials
from sparkdl.runner.loop.task_factory import TaskFactory
from sparkdl.runner.loop.trial_messages import TrialMessages
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runner.sigint import Interrupts
from sparkdl.runs import Run
from sparkdl.runs.commands import Command
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.rank_texts import rank_text
from sparkdl.runs.states import Failure, RunState, TrialState
from sparkdl.runs.trial import Trial
from sparkdl.search.trial_source import TrialSource

LOCAL_POLL_S = 0.2
REMOTE_POLL_S = 3.0


class Clock:
    """The time of a run in this process, in seconds."""

    def __init__(self) -> None:
        self._begun_s = self._trials_begun_s = time.monotonic()

    def start_trials(self) -> None:
        """Count from now on the time of the trials."""
        self._trials_begun_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Return the seconds since the first trial was submitted."""
        return time.monotonic() - self._trials_begun_s

    def total_s(self) -> float:
        """Return the seconds since the run was opened."""
        return time.monotonic() - self._begun_s


@dataclass(kw_only=True, eq=False, repr=False)
class TrialLoop:
    """The loop that runs the trials of one run to the end; `make_loop` puts its parts together.

    Args:
        prepared: the request, its plan and the cluster.
        opened: the run directory.
        tasks: makes the task of each attempt.
        waiting: the trials that wait for a slot.
        submitted: the trials that Spark has.
        stops: the requests to end trials or the run.
        rules: decide whether the run ends before its last trial.
        exclusion: the executors on which trials fail.
        retries: the budgets for other attempts.
        ends: takes note of attempts that have ended.
        paused: the trials that a pruner may promote.
        commands: carries out the commands of users.
        inbox: takes these commands.
        leaving: notifies trials whose executors are about to end.
        progress: displays the run.
        observers: all objects that follow the run.
        others_wait: returns True while one trial alone may run.
        clock: the time since the first trial.

    Attributes:
        outlives_program: the main thread of the program ended before the run did.
    """

    prepared: PreparedRun
    opened: OpenRun
    tasks: TaskFactory
    waiting: deque[Trial]
    submitted: SubmittedTrials
    stops: StopRequests
    rules: StopRules
    exclusion: ExecutorExclusion
    retries: Retries
    ends: AttemptEnds
    paused: PausedTrials
    commands: RunCommands
    inbox: CommandInbox
    leaving: LeavingExecutors
    progress: Progress
    observers: Observers
    others_wait: Callable[[], bool]
    clock: Clock

    def __post_init__(self) -> None:
        self.outlives_program = False
        self._num_started = 0
        self._release_program = self.prepared.cluster.share(self.prepared.program)
        self.opened.owner.when_taken_over(lambda: self.stop(RunState.FAILED, TAKEN_OVER))

    @property
    def run(self) -> Run:
        """The run."""
        return self.opened.run

    @property
    def source(self) -> TrialSource:
        """The source of trials beyond those that the run already has."""
        return self.ends.source

    @property
    def messages(self) -> TrialMessages:
        """The messages of running trials."""
        return self.ends.messages

    def stop(self, state: RunState, reason: str) -> None:
        """Let the run end soon, in this state and for this reason."""
        self.stops.end_run(state, reason)
        self.submitted.wake()

    @property
    def has_more(self) -> bool:
        """True if a trial waits, or the source may propose one."""
        return bool(self.waiting) or (not self.stops.run and self.source.num_left > 0)

    def cancel(self, number: int | None) -> None:
        """Cancel one trial, or with None all trials that have not finished."""
        if number is None:
            self.stops.end_run(RunState.CANCELLED, "cancelled")
        elif not self.run.trials[number].state.is_final:
            self.stops.cancelled.add(number)
        else:
            return
        # The caller need not wait until the loop has recorded this.
        self.inbox.post(Command("cancel", {} if number is None else {"trial": number}))

    def control(self, command: Command) -> None:
        """Carry out a command, see `CommandInbox.call`."""
        self.inbox.call(command)

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

    def execute(self, interrupts: Interrupts | None = None) -> None:
        """Run until every trial has ended or something stops the run.

        Args:
            interrupts: Ctrl-C, if the main thread runs the loop.

        Raises:
            RunStoppedError, AllTrialsFailedError, TrainingFailedError: if the run is not COMPLETE
                in the end.
            PreflightError: if an executor cannot run the trials.
            KeyboardInterrupt: after the run was stopped cleanly.
        """
        try:
            with self.failing(), self.progress:
                self.clock.start_trials()
                limits = (self.prepared.concurrency.limit, self.prepared.concurrency.slots)
                self.progress.announce(len(self.waiting) + self.source.num_left, *limits)
                while self._goes_on():
                    if interrupts:
                        interrupts.check()
                    self._fill()
                    self._take()
                    self._follow()
                    self.paused.end(self.ends.conclude)
                self.paused.end(self.ends.conclude, is_over=True)
            self._finish()
        finally:
            self.observers.run_ended()
        if self.stops.fatal:
            raise self.stops.fatal
        self.run.raise_unless_complete()

    def look(self) -> bool:
        """Carry out commands before the loop; return False if the run was ordered to end."""
        self.inbox.take()
        return not self.stops.run

    def _goes_on(self) -> bool:
        """Carry out the commands of users; return False after the last trial."""
        self.inbox.take(in_loop=True)
        return self.has_more or bool(self.submitted) or bool(self.exclusion)

    # ---- submitting trials

    def _fill(self) -> None:
        """Submit trials until there is no more room."""
        if self.stops.run:
            self._drop_waiting()
        if self.has_more:
            with suppress(Exception):  # A Spark that has ended lets the next job say so.
                self.prepared.concurrency.recount()
        while self.has_more and (self.waiting or self.source.is_ready) and self._has_room():
            if not self.waiting:
                self.waiting.append(self.source.next())
            trial = self.waiting[0]
            if event := self.ends.stop_event(trial):
                self.ends.conclude(trial, event)
            elif not self._submit(trial):
                return
            self.waiting.popleft()  # Not before: what raises leaves no trial behind.

    def _submit(self, trial: Trial) -> bool:
        """Hand a trial to the cluster; return False, and end the run, if Spark has ended."""
        num_left = len(self.waiting) + self.source.num_left
        at_once = int(min(self.prepared.concurrency.limit, num_left + len(self.submitted)))
        try:
            avoid = self.exclusion.avoided(trial.number)
            self.submitted.submit(trial, self.tasks.make(trial, at_once, avoid))
        except Exception as exc:
            failed = job_failed(exc)
            if failed.end is not JobEnd.SPARK_ENDED:
                raise
            self.stops.end_run(RunState.CANCELLED, f"Spark has ended: {failed}")
            return False
        return True

    def _has_room(self) -> bool:
        if self.waiting and self.ends.stop_event(self.waiting[0]):
            return True  # A trial that was cancelled needs no room.
        if self.commands.is_paused:
            return False
        short_s = self.prepared.concurrency.short_s() if self.prepared.plan.is_gang else 0.0
        if not short_s:
            num_running = sum(s.trial.state == TrialState.RUNNING for s in self.submitted)
            most = self.prepared.concurrency.max_submitted(self._num_started, num_running)
            most = 1 if self.others_wait() else most
            return len(self.submitted) < most
        if short_s > self.prepared.plan.start_timeout_s:
            self._give_up_on_slots()
        return False

    def _give_up_on_slots(self) -> None:
        """End the next trial, or a whole search: a gang has not got its slots for too long."""
        shortage = self.prepared.concurrency.shortage(self.prepared.plan.start_timeout_s)
        why = f"start deadline: {shortage}"
        if self.run.is_search:  # No trial is to blame, and the search can be resumed.
            self.stops.end_run(RunState.FAILED, why)
            return
        trial = self.waiting.popleft()
        self.ends.conclude(trial, no_slots_event(trial, why))

    # ---- following running trials

    def _take(self) -> None:
        """Wait a moment for attempts to end, and record what came out of them."""
        wait_s = self.messages.poll_s(poll_s(self.run.path, LOCAL_POLL_S, REMOTE_POLL_S))
        if ended := self.submitted.wait_for_ended(wait_s):
            self._record_starts()
            self.messages.read_last([submitted.trial for submitted in ended])
        for submitted in ended:
            self.ends.end_attempt(submitted)
        may_start = self.has_more and not self.others_wait()
        is_last = bool(self.stops.run) or not (self.submitted or may_start)
        self.ends.settle_held(is_last)

    def _follow(self) -> None:
        """Record starts and losses, show output, and cancel the trials that must end."""
        self._record_starts()
        # The log of a trial that has not started yet is that of an earlier attempt.
        running = [s.trial for s in self.submitted if s.trial.state == TrialState.RUNNING]
        if self.progress.is_shown or self.source.prunes or self.source.answers_requests:
            self.messages.read(running)
        for event in self.submitted.rank_events():
            self.opened.record(event)
            self.progress.say(rank_text(event))
        self.leaving.look(self.submitted, self.messages)
        self.progress.show_outputs(running)
        self.progress.show_counts(running, self.messages.newest, self.messages.steps)
        stop = self.rules.used_up(running, self.clock.elapsed_s())
        if stop and (self.has_more or self.submitted):
            self.stops.end_run(*stop)
        overdue = self.stops.numbers | self.messages.overdue()
        self.submitted.cancel(None if self.stops.run else overdue)

    def _record_starts(self) -> None:
        for submitted, attempt in self.submitted.starts():
            trial = submitted.trial
            if attempt > submitted.first:  # Spark has repeated the task by itself.
                if not self.retries.allow(trial.number, Failure.LOST):
                    self.stops.give_up(trial.number, self.prepared.request.options.max_losses)
                    continue
                self.ends.record_loss(trial, attempt - 1, "its executor was lost")
            self._num_started += 1
            self.messages.attempt_ended(trial)  # An earlier one, whose loss Spark has hidden.
            state = TrialState.RUNNING
            self.opened.record(TrialChanged(number=trial.number, state=state, attempt=attempt))
            self.observers.trial_started(trial, attempt)

    # ---- the end of the run

    def _stop_for(self, exc: BaseException) -> None:
        """End everything, as the driver cannot go on; Ctrl-C of the user is not a failure."""
        is_interrupt = isinstance(exc, KeyboardInterrupt)
        why = "interrupted" if is_interrupt else f"{exc}".split("\n")[0]
        self.stops.end_run(RunState.CANCELLED if is_interrupt else RunState.FAILED, why)
        # The source may be what has raised.
        source = TrialSource()
        is_gang = self.prepared.plan.is_gang
        self.ends.source = source
        self.ends.messages = TrialMessages(source, self.opened.journal, is_gang)
        self._abandon()

    def _drop_waiting(self) -> None:
        """Record all trials that have never started as cancelled, in one write."""
        if events := [self.stops.cancelled_event(trial) for trial in self.waiting]:
            self.waiting.clear()
            self.opened.record(*events)

    def _abandon(self) -> None:
        """Cancel everything that has not ended, then record the ends; each step is tried."""
        self.submitted.cancel()
        while self.exclusion:
            with tolerated("record the ends of trials that have failed"):
                self.ends.settle_held(is_last=True)
        with tolerated("record that waiting trials are cancelled"):
            self._drop_waiting()
        self.submitted.abandon(self.messages.read_last, self.ends.end_attempt)

    def _finish(self) -> None:
        """Record the end of the run and give up its ownership."""
        self.inbox.close()
        self.outlives_program = not threading.main_thread().is_alive()
        self.submitted.close()
        self.prepared.release_rows()
        self._release_program()
        state, reason = self.stops.outcome(self.run.trials)
        total_s, limit = self.clock.total_s(), self.prepared.concurrency.limit
        event = RunEnded(state=state, reason=reason, duration_s=round(total_s, 3))
        _finish_run(self.opened, event, limit, total_s, self.prepared.plan.timeline)


def _finish_run(
    opened: OpenRun, event: RunEnded, limit: int, running_s: float, has_timeline: bool
) -> None:
    """Record the end of a run, with sentences about the use of its time, and close the run.

    Args:
        opened: the run directory.
        event: the event without the sentences.
        limit: number of trials at once.
        running_s: seconds since the run was opened.
        has_timeline: the run was started with `timeline=True`.
    """
    run = opened.run
    try:
        idle = idle_now(run.trials, limit, running_s)
        event = replace(event, idle=idle, timeline=where_time_went(run) if has_timeline else None)
    finally:
        _close_run(opened, event)


def _close_run(opened: OpenRun, event: RunEnded) -> None:
    """Close a run; `opened.run` has ended also if the run directory cannot be written."""
    try:
        opened.close(event)
    except BaseException:
        opened.run.apply(event)
        raise
