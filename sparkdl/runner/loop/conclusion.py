"""Runs on the driver. From the outcomes of a trial's processes to the journal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import cloudpickle

from sparkdl.cluster.outcome import Outcome, Status, is_follow_up
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.errors import PreflightError, RemoteTraceback
from sparkdl.files.polling import retry
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.retry_choice import OUTSIDE, STOPPED
from sparkdl.runs.run import Run
from sparkdl.runs.states import Failure, TrialState, evaluate_metric
from sparkdl.runs.trial import Trial, Usage
from sparkdl.secrets.masks import mask_text

# Seconds for which a store that fails is tried again; no other trial is followed meanwhile.
READ_S = 30.0

_NO_CHIEF = "the chief's executor was lost before what the chief had returned could be fetched\n"


@dataclass(frozen=True)
class Conclusion:
    """The end of an attempt at a trial.

    Attributes:
        event: the event for the journal.
        exception: the user's own exception, if the attempt failed.
        may_retry: another attempt may not meet this failure.
        fatal: the reason for which no trial can run.
        is_outside: the Spark job was cancelled, but not by this driver.
        needs_rows: the trial did not begin, as its executor had no copy of the rows.
        is_avoided: no executor ran the trial, as Spark had none that is not excluded.
        spark_ended: the reason for which Spark runs no more trials; empty if it does.
    """

    event: TrialChanged
    exception: BaseException | None = None
    may_retry: bool = True
    fatal: PreflightError | None = None
    is_outside: bool = False
    needs_rows: bool = False
    is_avoided: bool = False
    spark_ended: str = ""


def conclude(
    outcomes: Sequence[Outcome],
    number: int,
    in_job_s: float,
    run: Run,
    how: str = "last",
) -> Conclusion:
    """Return the end of an attempt whose job brought outcomes.

    Args:
        outcomes: the outcome of each process of the trial.
        number: the number of the trial.
        in_job_s: seconds since the trial was submitted.
        run: the run. In a search, a trial without a value of each metric is INVALID.
        how: see `with_value`.

    Example:
        >>> outcome = Outcome(status=Status.RETURNED, outputs={"accuracy": 0.9})
        >>> conclude([outcome], 0, 1.0, Run("r", "r", "r", "launch")).event.value
        0.9
    """
    outcome = combine(outcomes)
    if outcome.status is Status.REFUSED:
        fatal = PreflightError(f"trial {number}: {outcome.error}")
        event = TrialChanged(number=number, state=TrialState.CANCELLED, error=str(fatal))
        return Conclusion(event, fatal=fatal)
    if not outcome.reported and number < len(run.trials):
        # A trial that has paused at its last report has nothing left to report when it goes on.
        outcome = replace(outcome, reported=run.trials[number].metrics)
    used = outcome.usage
    queued_s = in_job_s - used.get("starting_s", 0.0) - used.get("running_s", 0.0)
    event = TrialChanged(
        number=number,
        usage={**used, "queued_s": round(max(0.0, queued_s), 4)},
        attempt=outcome.attempt,
        host=outcome.host,
        **{"note": outcome.note, **_result(outcome, run, how)},
    )
    if outcome.status is Status.FAILED:
        return Conclusion(event, exception_of(outcome.exception, outcome.error or ""))
    return Conclusion(event)


def with_value(conclusion: Conclusion, trial: Trial, how: str) -> Conclusion:
    """Return the conclusion of an attempt with the value that counts for its trial.

    Args:
        conclusion: the end of the attempt, with the last value.
        trial: the trial, with the values that it has reported.
        how: `last`, or `best` for the best value that was returned or reported.
    """
    value = conclusion.event.value
    if value is None or how == "last":
        return conclusion
    try:
        reported = retry(trial.reported_values, "read the reports of a trial", READ_S)
    except OSError as exc:
        note = f"the value is the last one, as the reported values could not be read: {exc}"
        note = "; ".join(filter(None, (conclusion.event.note, note)))
        return replace(conclusion, event=replace(conclusion.event, note=note))
    values = [value, *filter(math.isfinite, reported)]
    best = max(values) if trial.direction == "max" else min(values)
    return replace(conclusion, event=replace(conclusion.event, value=best))


def conclude_failed_job(
    failed: JobFailed,
    number: int,
    attempt: int,
    secrets: Sequence[str],
    stop_event: TrialChanged | None,
) -> Conclusion:
    """Return the end of an attempt whose job brought no outcome.

    Args:
        failed: the error of the job.
        number: the number of the trial.
        attempt: the number of the attempt; -1 if none was seen to start.
        secrets: values to mask in the error.
        stop_event: the event of a job that this driver cancelled; None if it did not.
    """
    error = mask_text(str(failed), tuple(secrets))
    if failed.end in (JobEnd.CANCELLED, JobEnd.SPARK_ENDED):
        reason = f"Spark has ended: {error}" if failed.end is JobEnd.SPARK_ENDED else ""
        text = f"{STOPPED}: {reason}" if reason else OUTSIDE
        outside_event = TrialChanged(number=number, state=TrialState.CANCELLED, error=text)
        return Conclusion(
            # A job that waited for a slot was no attempt.
            replace(stop_event or outside_event, attempt=attempt if attempt >= 0 else None),
            is_outside=not (stop_event or reason),
            spark_ended=reason,
        )
    failures = {JobEnd.ERROR: Failure.EXCEPTION, JobEnd.MEMORY: Failure.MEMORY}
    failure = failures.get(failed.end, Failure.LOST)
    event = TrialChanged(
        number=number,
        state=TrialState.FAILED,
        attempt=max(0, attempt),
        error=error,
        failure=str(failure),
    )
    return Conclusion(
        event,
        exception_of(None, error),
        failed.end is not JobEnd.ERROR,
        needs_rows=failed.end is JobEnd.NO_COPY,
        is_avoided=failed.end is JobEnd.AVOIDED,
    )


def _result(outcome: Outcome, run: Run, how: str) -> dict[str, Any]:
    """Return the fields of the event that follow from the status of an outcome."""
    if outcome.status is Status.FAILED:
        failure = str(outcome.failure)
        return {"state": TrialState.FAILED, "error": outcome.error, "failure": failure}
    if outcome.status is Status.PRUNED:
        return {"state": TrialState.PRUNED, "metrics": dict(outcome.reported)}
    if outcome.status is Status.INVALID:
        return {"state": TrialState.INVALID, "error": f"InvalidTrial: {outcome.error}"}
    metrics: list[str | None] = [*run.objectives] or [run.metric]
    # The value of a single trial is compared with nothing but its own reports.
    is_compared = run.is_search or len(run.trials) > 1 or how == "best"
    direction = run.direction if is_compared else None
    reported = dict(outcome.reported)
    if metrics[0] and "value" in reported:
        # A number that was reported without a name is the value of the first metric.
        reported.setdefault(metrics[0], reported.pop("value"))
    verdicts = [
        evaluate_metric(outcome.outputs, reported, name, run.is_search, direction)
        for name in metrics
    ]
    verdict = next((verdict for verdict in verdicts if verdict.reason), verdicts[0])
    numbers = {k: float(v) for k, v in outcome.outputs.items() if isinstance(v, int | float)}
    return {
        "state": verdict.state,
        "value": verdict.value,
        "outputs": dict(outcome.outputs),
        "shape": outcome.shape,
        "metrics": {**reported, **numbers},
        "error": verdict.reason,
        "note": "; ".join(filter(None, (outcome.note, verdict.note))) or None,
    }


def combine(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of a trial from those of its processes.

    The value of a gang is that of its chief. If ranks failed, the outcome is that of the rank that
    failed first. An error that only reports the loss of another rank does not count as the first
    one, whatever the clocks of the hosts say.

    Args:
        outcomes: one outcome of a single process, or one of each rank of a gang.

    Example:
        >>> from sparkdl.cluster.outcome import RankInfo
        >>> chief = RankInfo(rank=0, role="worker 0", host="a")
        >>> other = RankInfo(rank=1, role="worker 1", host="b")
        >>> good = Outcome(status=Status.RETURNED, is_chief=True, who=chief)
        >>> bad = Outcome(status=Status.FAILED, error="ValueError: no", who=other, ended_s=1.0)
        >>> combine([good, bad]).error
        'worker 1 (rank 1) on host b: ValueError: no'
    """
    if outcomes[0].who is None:
        return outcomes[0]
    for outcome in outcomes:
        if outcome.status is Status.REFUSED:
            return outcome
    usage = _total_usage(outcomes)
    failed = [outcome for outcome in outcomes if outcome.is_failure]
    if failed:
        first = min(failed, key=_failure_order)
        error = f"{first.who}: {first.error}" if first.error is not None else None
        return replace(first, error=error, usage=usage)
    notes = dict.fromkeys(outcome.note for outcome in outcomes if outcome.note)
    for outcome in outcomes:
        if outcome.is_chief:
            return replace(outcome, usage=usage, note="; ".join(notes) or None)
    return replace(
        outcomes[0], status=Status.FAILED, error=_NO_CHIEF, failure=Failure.LOST, usage=usage
    )


def _failure_order(outcome: Outcome) -> tuple[bool, float]:
    return is_follow_up(outcome.error or ""), outcome.ended_s


def _total_usage(outcomes: Sequence[Outcome]) -> Mapping[str, float]:
    """Return the CPU seconds of all ranks, the longest times, and the largest memory."""
    total = {f.name: 0.0 for f in fields(Usage) if f.name != "queued_s"}
    for outcome in outcomes:
        for name, value in outcome.usage.items():
            total[name] = total[name] + value if name == "cpu_s" else max(total[name], value)
    return total


def exception_of(pickled: bytes | None, error: str) -> BaseException:
    """Return the user's exception, with the traceback where it was raised as its cause.

    An exception that could not be pickled, or a process that died, becomes a RuntimeError with the
    same text.
    """
    try:
        exception: BaseException = cloudpickle.loads(pickled) if pickled else RuntimeError(error)
    except Exception:  # noqa: BLE001 The class may be missing here, or fail in any way.
        exception = RuntimeError(error)
    exception.__cause__ = RemoteTraceback(error)
    return exception
