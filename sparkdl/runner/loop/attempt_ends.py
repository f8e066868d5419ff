"""Runs on the driver. The end of an attempt at a trial: the next state of the trial."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from sparkdl.cluster.spark_errors import JobFailed
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.runner.display.progress import Progress
from sparkdl.runner.harmless import tolerated
from sparkdl.runner.loop.conclusion import Conclusion, conclude, conclude_failed_job, with_value
from sparkdl.runner.loop.exclusion_rules import Ruling
from sparkdl.runner.loop.executor_exclusion import EndedAttempt, ExecutorExclusion
from sparkdl.runner.loop.observers import Observers
from sparkdl.runner.loop.paused_trials import PausedTrials
from sparkdl.runner.loop.retries import Retries
from sparkdl.runner.loop.stop_requests import StopRequests
from sparkdl.runner.loop.stop_rules import StopRules
from sparkdl.runner.loop.submitted import SubmittedTrial, SubmittedTrials
from sparkdl.runner.loop.trial_messages import TrialMessages
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runs import Run
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.retry_choice import OUTSIDE
from sparkdl.runs.states import Failure, TrialState
from sparkdl.runs.trial import Trial
from sparkdl.search.trial_source import TrialSource


class Next(Enum):
    """The next state of a trial whose attempt has ended, see `AttemptEnds`."""

    TAKEN_BACK = auto()
    HELD = auto()
    ELSEWHERE = auto()
    RETRIED = auto()
    ENDED = auto()


@dataclass(kw_only=True, eq=False)
class AttemptEnds:
    """The states of trials after an attempt: one that is submitted becomes one of these.

    ==========  ============================================  ================================
    next state  if the attempt                                and then the trial
    ==========  ============================================  ================================
    TAKEN_BACK  has not run: its job was recalled, or lacked  waits at its place, and no budget
                the rows or an executor                       counts
    HELD        failed on an executor that may be at fault    waits for other trials to show it
    ELSEWHERE   failed on an executor that is at fault        waits before all others
    RETRIED     failed, was lost or was cancelled outside,    waits behind all others
                within its budget
    ENDED       has any other end, or the run ends            is PAUSED if its pruner may promote
                                                              it, else has its final state
    ==========  ============================================  ================================

    A held trial becomes ELSEWHERE, RETRIED or ENDED, by `settle_held`.

    Args:
        prepared: the request and its plan.
        opened: the run directory, which records the states.
        waiting: the trials that wait for a slot.
        submitted: the trials that Spark has.
        stops: the requests to end trials or the run.
        rules: decide whether the run ends with a trial.
        exclusion: the executors that are at fault.
        retries: the budgets for other attempts.
        paused: the trials that a pruner may promote.
        progress: shows what happens.
        observers: follow the run.

    Attributes:
        source: proposes trials, and learns how they end.
        messages: the messages of running trials.
    """

    prepared: PreparedRun
    opened: OpenRun
    waiting: deque[Trial]
    submitted: SubmittedTrials
    stops: StopRequests
    rules: StopRules
    exclusion: ExecutorExclusion
    retries: Retries
    paused: PausedTrials
    progress: Progress
    observers: Observers
    source: TrialSource
    messages: TrialMessages

    def __post_init__(self) -> None:
        self._said: set[str] = set()

    def end_attempt(self, submitted: SubmittedTrial) -> None:
        """Take note of an attempt whose Spark job has ended."""
        trial = submitted.trial
        if trial.state.is_final:  # Recorded, but the loop was interrupted then.
            self.submitted.forget(trial.number)
            return
        options, secrets = self.prepared.request.options, self.prepared.secrets
        conclusion = _conclusion_of(
            submitted,
            self.submitted,
            self.opened.run,
            self.stop_event(trial),
            options.trial_value,
            secrets,
        )
        trial.exception = conclusion.exception
        event = self.stops.attempt_ended(trial, conclusion)
        failure = OUTSIDE if conclusion.is_outside else event.failure or str(Failure.EXCEPTION)
        attempt = EndedAttempt(submitted, event, failure if conclusion.may_retry else "")
        self._carry_out(self._next(attempt, conclusion), attempt)

    def _next(self, attempt: EndedAttempt, conclusion: Conclusion) -> Next:
        submitted = attempt.submitted
        if conclusion.is_outside and submitted.is_recalled and not submitted.has_started:
            return Next.TAKEN_BACK
        if self.stops.run:
            return Next.ENDED
        number = submitted.trial.number
        is_avoided = conclusion.is_avoided and self.exclusion.run_anywhere(number)
        if conclusion.needs_rows or is_avoided:
            return Next.TAKEN_BACK
        match self.exclusion.rule(attempt):
            case Ruling.HOLD:
                return Next.HELD
            case Ruling.ELSEWHERE:
                return Next.ELSEWHERE
        return self._next_within_budget(attempt)

    def _next_within_budget(self, attempt: EndedAttempt) -> Next:
        failure = attempt.failure
        is_failure = (attempt.event.state == TrialState.FAILED and failure) or failure == OUTSIDE
        if self.stops.run or not is_failure:
            return Next.ENDED
        is_allowed = self.retries.allow_after(attempt.submitted, failure)
        return Next.RETRIED if is_allowed else Next.ENDED

    def _carry_out(self, state: Next, attempt: EndedAttempt) -> None:
        trial = attempt.submitted.trial
        match state:
            case Next.TAKEN_BACK:
                self.submitted.forget(trial.number)
                before = [other for other in self.waiting if other.number < trial.number]
                self.waiting.insert(len(before), trial)
            case Next.HELD:
                self.exclusion.hold(attempt)
                self.submitted.forget(trial.number)
            case Next.ELSEWHERE:
                self._run_again(attempt, self.waiting.appendleft)
            case Next.RETRIED:
                self._run_again(attempt, self.waiting.append)
            case Next.ENDED:
                self.conclude(trial, attempt.event)

    def settle_held(self, is_last: bool) -> None:
        """Let those held trials go on for which it is known now whether their executor is at fault.

        Args:
            is_last: the run ends, or no other trial runs or may be started: all failures count
                that are still held. After an error, the remaining ones stay.
        """
        for attempt, ruling in self.exclusion.take_decided(self.stops.numbers, is_last):
            elsewhere = ruling is Ruling.ELSEWHERE
            state = Next.ELSEWHERE if elsewhere else self._next_within_budget(attempt)
            self._carry_out(state, attempt)

    def stop_event(self, trial: Trial) -> TrialChanged | None:
        """Return the event of a trial that was ordered to end; None for any other trial."""
        if self.messages.is_stopped(trial):
            return TrialChanged(number=trial.number, state=TrialState.PRUNED)
        return self.stops.event_of(trial)

    def record_loss(self, trial: Trial, attempt: int, why: str) -> None:
        """Record that an attempt was lost, and that another one follows."""
        self.progress.show_output(trial, last=True)
        self.progress.say(f"[trial {trial.number}] {why}; it is run again")
        self.opened.record(
            TrialChanged(number=trial.number, state=TrialState.LOST, attempt=attempt, error=why)
        )

    def _run_again(self, attempt: EndedAttempt, wait: Callable[[Trial], None]) -> None:
        trial, event = attempt.submitted.trial, attempt.event
        if attempt.failure in (Failure.LOST, OUTSIDE):
            # A trial whose job was cancelled goes on from its checkpoint, as after a loss.
            event = replace(event, failure=str(Failure.LOST))
            self.record_loss(trial, event.attempt or 0, (event.error or "").split("\n")[0])
        else:
            self.progress.show_output(trial, last=True)
        self.opened.record(replace(event, state=TrialState.WAITING))
        self.submitted.forget(trial.number)
        wait(trial)
        self.messages.attempt_ended(trial)
        self.source.restarted(trial, attempt.failure)

    def conclude(self, trial: Trial, event: TrialChanged) -> None:
        """Record the final event of a trial, once, and let all observers know."""
        self.progress.show_output(trial, last=True)
        if event.metrics is None:  # Its task did not return them.
            event = replace(event, metrics=trial.metrics)
        self.submitted.forget(trial.number)
        if self.paused.record_pause(trial, event):
            self.messages.trial_ended(trial)
            return
        note = event.note
        if event.state == TrialState.PRUNED and (why := self.source.why_stopped(trial)):
            # Most trials of a search may have such a note, which the table shows.
            event = replace(event, note="; ".join(filter(None, (why, note))))
        self.opened.record(event)
        if note and note not in self._said:  # Each trial may leave the same.
            self._said.add(note)
            self.progress.say(f"[trial {trial.number}] Note: {note}")
        _settle_files(trial, self.prepared)
        self.messages.trial_ended(trial)
        self.source.observe_end(trial)
        self.observers.trial_ended(trial)
        if stop := self.rules.trial_ended(trial):
            self.stops.end_run(*stop)


def _conclusion_of(
    submitted: SubmittedTrial,
    all_submitted: SubmittedTrials,
    run: Run,
    stop_event: TrialChanged | None,
    trial_value: str,
    secrets: Sequence[str],
) -> Conclusion:
    """Return the conclusion of an attempt at a trial whose job has ended.

    Args:
        submitted: the trial.
        all_submitted: reads the outcomes of the job.
        run: the run.
        stop_event: the event of a trial that was ordered to end; None for any other trial.
        trial_value: the option of this name.
        secrets: values to mask in errors.
    """
    trial = submitted.trial
    try:
        outcomes = all_submitted.outcomes_of(submitted)
    except JobFailed as failed:
        conclusion = conclude_failed_job(
            failed, trial.number, submitted.newest_attempt, secrets, stop_event
        )
        # An attempt that Spark has repeated by itself, on an executor without a copy, was lost.
        return replace(conclusion, needs_rows=conclusion.needs_rows and not submitted.has_started)
    in_job_s = time.monotonic() - submitted.submitted_s
    conclusion = conclude(outcomes, trial.number, in_job_s, run, trial_value)
    return with_value(conclusion, trial, trial_value)


def _settle_files(trial: Trial, prepared: PreparedRun) -> None:
    """Write the error of a trial that no task has written, and remove its lists of rows.

    The lists are those by which a trial goes on in the middle of an epoch of a DataFrame. In some
    searches other trials go on from its checkpoints, and read them as well.
    """
    _write_missing_error(trial, prepared.plan.is_gang)
    search, done = prepared.request.search, (TrialState.COMPLETE, TrialState.PRUNED)
    is_over = trial.state in done and not (search and search.is_scheduled)
    if is_over and prepared.data is not None:
        with tolerated(f"remove the lists of rows of trial {trial.number}"):
            storage.remove(TrialPaths(trial.path).rows)


def _write_missing_error(trial: Trial, is_gang: bool) -> None:
    """Write the error of a trial that no task has written.

    No rank of a gang knows which rank failed first, and no task sees an error of Spark.
    """
    error = TrialPaths(trial.path).error
    with tolerated(f"write {error}"):
        is_missing = trial.state == TrialState.FAILED and not storage.exists(error)
        if trial.error and (is_gang or is_missing):
            storage.write(error, trial.error)
