"""Runs on the driver. From the end of a trial's Spark job to what the journal says of the trial."""

import time
from dataclasses import dataclass

from sparkdl.cluster.plan import Plan
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.errors import PreflightError
from sparkdl.jsonl import Line as Event
from sparkdl.runner.outcome import combined, event_of, exception_of
from sparkdl.runner.submitted import Flight, Flights
from sparkdl.runs import Run
from sparkdl.runs.redact import mask_text
from sparkdl.runs.states import Failure

__all__ = ["Landing", "land"]


@dataclass(frozen=True)
class Landing:
    """How an attempt ended.

    Attributes:
        event: the fields of the journal's event.
        exception: the person's own, if it failed.
        may_retry: a failure of a kind that another attempt may not meet.
        fatal: why no trial can run.
    """

    event: Event
    exception: BaseException | None = None
    may_retry: bool = True
    fatal: PreflightError | None = None


def land(flight: Flight, flights: Flights, run: Run, plan: Plan, stopped: Event | None) -> Landing:
    """How the attempt of a flight ended whose job is over.

    Args:
        flight, flights: the trial, and what has its job.
        run, plan: the run that it belongs to.
        stopped: what is written of a job that we cancelled.
    """
    try:
        outcome, exception = combined(flights.rows_of(flight))
    except JobFailed as failed:
        return _failed(flight, failed, plan, stopped)
    if "preflight" in outcome:
        fatal = PreflightError(f"trial {flight.trial.number}: {outcome['preflight']}")
        return Landing({"state": "CANCELLED", "error": str(fatal)}, fatal=fatal)
    used = outcome["usage"]
    in_job_s = time.monotonic() - flight.submitted_s
    queued_s = max(0.0, in_job_s - used["starting_s"] - used["running_s"])
    event = event_of(outcome, queued_s, list(run.objectives) or run.metric, run.kind == "search")
    if event["state"] == "FAILED":
        return Landing(event, exception_of(exception, event["error"]))
    return Landing(event)


def _failed(flight: Flight, failed: JobFailed, plan: Plan, stopped: Event | None) -> Landing:
    error = mask_text(str(failed), tuple(plan.env.values()))
    event: Event = {"error": error, "attempt": max(0, flight.seen)}
    if failed.end is JobEnd.CANCELLED:
        why: Event = {"state": "CANCELLED", "error": "its Spark job was cancelled outside this run"}
        return Landing({**event, **(stopped or why)})
    kinds = {JobEnd.LOST: Failure.LOST, JobEnd.MEMORY: Failure.MEMORY}
    kind = kinds.get(failed.end, Failure.EXCEPTION)
    event |= {"state": "FAILED", "failure": str(kind)}
    return Landing(event, exception_of(None, error), failed.end is not JobEnd.ERROR)
