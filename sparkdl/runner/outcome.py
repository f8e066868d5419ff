"""Runs on the driver (pure). From what a task said of a trial to what the journal says of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import cloudpickle

from sparkdl.cluster.outcome import is_follow_up, says_failure
from sparkdl.errors import RemoteTraceback
from sparkdl.jsonl import Line as Event
from sparkdl.runs.states import Failure, TrialState, evaluate_metric
from sparkdl.runs.trial import Usage

__all__ = ["combined", "event_of", "exception_of"]

_NO_CHIEF = "the chief's executor was lost before what the chief had returned could be fetched\n"


def event_of(
    outcome: Mapping[str, Any],
    queued_s: float,
    metric: str | Sequence[str] | None,
    needed: bool = False,
) -> Event:
    """The fields of a trial's final journal event.

    Args:
        outcome: the row of `cluster.task.TrialTask`, parsed.
        queued_s: seconds that it waited for a slot.
        metric: the name of the number that counts, or of several.
        needed: a trial without such a number is INVALID.

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
        why = {"error": outcome["error"], "failure": outcome["failure"]}
        return {**event, "state": str(TrialState.FAILED), **why}
    if "pruned" in outcome:
        pruned = {"state": str(TrialState.PRUNED), "metrics": dict(outcome["reported"])}
        return {**event, **pruned}
    if "invalid" in outcome:
        return {
            **event,
            "state": str(TrialState.INVALID),
            "error": f"InvalidTrial: {outcome['invalid']}",
        }
    outputs, reported = outcome["outputs"], dict(outcome["reported"])
    metrics = [metric] if isinstance(metric, str | None) else metric
    if metrics[0] and "value" in reported:
        reported.setdefault(metrics[0], reported.pop("value"))  # A plain number stands for it.
    verdicts = [evaluate_metric(outputs, reported, name, needed) for name in metrics]
    verdict = next((one for one in verdicts if one.reason), verdicts[0])
    numbers = {k: float(v) for k, v in outputs.items() if isinstance(v, int | float)}
    return {
        **event,
        "state": str(verdict.state),
        "value": verdict.value,
        "outputs": outputs,
        "metrics": {**reported, **numbers},
        "error": verdict.reason,
    }


def combined(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], bytes | None]:
    """What the tasks of one trial said together, and the pickled exception of the one that failed.

    Of a gang, the chief's value counts; if ranks failed, the one that failed first does. What only
    says that another rank has gone is not what failed first, whatever the hosts' clocks say.

    Args:
        rows: the rows of `cluster.task.TrialTask` (one) or `cluster.gang.GangTask` (one a rank).

    Example:
        >>> ok = {"rank": 0, "is_chief": True, "outputs": {"value": 1}, "usage": {"cpu_s": 1.0}}
        >>> bad = {"rank": 1, "role": "worker 1", "host": "b", "usage": {"cpu_s": 1.0}}
        >>> bad |= {"error": "ValueError: no", "failure": "exception", "ended_s": 1.0}
        >>> rows = [{"outcome": json.dumps(said), "exception": None} for said in (ok, bad)]
        >>> combined(rows)[0]["error"]
        'worker 1 (rank 1) on host b: ValueError: no'
    """
    said = [(json.loads(row["outcome"]), row["exception"]) for row in rows]
    if "rank" not in said[0][0]:
        return said[0]
    failed = [one for one in said if says_failure(one[0])]
    for outcome, _ in said:
        if "preflight" in outcome:
            return outcome, None
    if not failed:
        chief = next((one for one in said if one[0].get("is_chief")), None)
        if chief is None:
            why = {"error": _NO_CHIEF, "failure": str(Failure.LOST)}
            return {**said[0][0], **why, "usage": _usage([o for o, _ in said])}, None
        return {"reported": {}, **chief[0], "usage": _usage([o for o, _ in said])}, None
    first, exception = min(failed, key=_order)
    where = f"{first['role']} (rank {first['rank']}) on host {first['host']}"
    texts = {k: f"{where}: {first[k]}" for k in ("error", "invalid") if k in first}
    return {"reported": {}, **first, **texts, "usage": _usage([o for o, _ in said])}, exception


def _order(one: tuple[dict[str, Any], bytes | None]) -> tuple[bool, float]:
    summary = str(one[0].get("error", "")).split("\n")[0]
    return is_follow_up(summary), one[0]["ended_s"]


def _usage(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The CPU seconds of all ranks, the longest times, the largest memory."""
    found = {f.name: 0.0 for f in fields(Usage) if f.name != "queued_s"}
    for used in (outcome["usage"] for outcome in outcomes):
        for name, value in used.items():
            found[name] = found[name] + value if name == "cpu_s" else max(found[name], value)
    return found


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
