"""Runs on the driver. Steps at the end of an attempt, of a trial and of a run."""

import time
from collections.abc import Sequence
from dataclasses import replace

from sparkdl import storage
from sparkdl.cluster.spark_errors import JobFailed
from sparkdl.runner.display.harmless import tolerated
from sparkdl.runner.outcome import Conclusion, conclude, conclude_failed_job, with_value
from sparkdl.runner.prepare import PreparedRun
from sparkdl.runner.submitted import SubmittedTrial, SubmittedTrials
from sparkdl.runs import Run, Trial, TrialState
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.idle_time import idle_now
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.step_time import where_time_went

__all__ = ["conclusion_of", "finish_run", "settle_files"]


def conclusion_of(
    submitted: SubmittedTrial,
    all_submitted: SubmittedTrials,
    run: Run,
    stopped: TrialChanged | None,
    trial_value: str,
    secrets: Sequence[str],
) -> Conclusion:
    """Return the conclusion of an attempt at a trial whose job has ended.

    Args:
        submitted: the trial.
        all_submitted: reads the outcomes of the job.
        run: the run.
        stopped: the event of a trial that was ordered to end; None for any other trial.
        trial_value: the option of this name.
        secrets: values to mask in errors.
    """
    trial = submitted.trial
    try:
        outcomes = all_submitted.outcomes_of(submitted)
    except JobFailed as failed:
        ended = conclude_failed_job(failed, trial.number, submitted.seen, secrets, stopped)
        # An attempt that Spark has repeated by itself, on an executor without a copy, was lost.
        return replace(ended, needs_rows=ended.needs_rows and not submitted.has_started)
    in_job_s = time.monotonic() - submitted.submitted_s
    conclusion = conclude(outcomes, trial.number, in_job_s, run, trial_value)
    return with_value(conclusion, trial, trial_value)


def finish_run(
    opened: OpenRun, event: RunEnded, limit: int, running_s: float, has_timeline: bool
) -> None:
    """Record the end of a run, with sentences about the use of its time, and close the run.

    Args:
        opened: the run directory.
        event: the event without the sentences.
        limit: number of trials at once.
        running_s: seconds since the first trial was submitted.
        has_timeline: the run was started with `timeline=True`.
    """
    run = opened.run
    try:
        idle = idle_now(run.trials, limit, running_s)
        event = replace(event, idle=idle, timeline=where_time_went(run) if has_timeline else None)
    finally:
        _close_run(opened, event)


def settle_files(trial: Trial, prepared: PreparedRun) -> None:
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


def _close_run(opened: OpenRun, event: RunEnded) -> None:
    """Close a run; `opened.run` has ended also if the run directory cannot be written."""
    try:
        opened.close(event)
    except BaseException:
        opened.run.apply(event)
        raise
