"""Where it runs: D (pure). From what a task said of a trial to what the journal says of it."""

from collections.abc import Mapping
from typing import Any

import cloudpickle

from sparkdl.errors import RemoteTraceback
from sparkdl.runs.journal import Event
from sparkdl.runs.states import TrialState, judge

__all__ = ["event_of", "exception_of"]


def event_of(outcome: Mapping[str, Any], queued_s: float, metric: str | None) -> Event:
    """The fields of a trial's final journal event.

    Args:
        outcome: the row of `cluster.task.TrialTask`, parsed.
        queued_s: seconds that it waited for a slot.
        metric: the name of the number that counts.

    Example:
        >>> said = {"outputs": {"accuracy": 0.9}, "reported": {}, "usage": {}, "attempt": 0}
        >>> event_of(said, 0.5, "accuracy")["value"]
        0.9
    """
    event: Event = {
        "usage": {**outcome["usage"], "queued_s": round(queued_s, 4)},
        "attempt": outcome["attempt"],
    }
    if "error" in outcome:
        return {**event, "state": str(TrialState.FAILED), "error": outcome["error"]}
    if "invalid" in outcome:
        why = f"InvalidTrial: {outcome['invalid']}"
        return {**event, "state": str(TrialState.INVALID), "error": why}
    outputs, reported = outcome["outputs"], dict(outcome["reported"])
    if metric and "value" in reported:
        reported.setdefault(metric, reported.pop("value"))  # A plain number stands for it.
    verdict = judge(outputs, reported, metric)
    numbers = {k: float(v) for k, v in outputs.items() if isinstance(v, int | float)}
    return {
        **event,
        "state": str(verdict.state),
        "value": verdict.value,
        "outputs": outputs,
        "metrics": {**reported, **numbers},
        "error": verdict.reason,
    }


def exception_of(pickled: bytes | None, error: str) -> BaseException:
    """The person's own exception, its cause the traceback where it was raised.

    One that could not travel, or a process that died, is a RuntimeError with the same text.
    """
    try:
        exception: BaseException = cloudpickle.loads(pickled) if pickled else RuntimeError(error)
    except Exception:  # noqa: BLE001 Its class may be missing here, or fail in any way.
        exception = RuntimeError(error)
    exception.__cause__ = RemoteTraceback(error)
    return exception
