"""Runs anywhere (pure). The states of runs and trials; what a returned value means."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["Failure", "RunState", "TrialState", "Verdict", "judge", "natural_state"]


class _Text(str, Enum):
    def __str__(self) -> str:
        return str(self.value)

    @property
    def is_final(self) -> bool:
        """Whether nothing follows this state."""
        return self.value not in ("WAITING", "RUNNING", "LOST")


class Failure(str, Enum):
    """Of which kind a failure is: what to do about it differs."""

    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    MEMORY = "out of memory"
    GPU = "GPU fault"
    LOST = "lost executor"
    DEADLINE = "start deadline"
    TIMEOUT = "timeout"
    PORT = "port taken"

    def __str__(self) -> str:
        return str(self.value)


class RunState(_Text):
    """The state of a run. Equal to its name: `run.state == "COMPLETE"`."""

    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class TrialState(_Text):
    """The state of a trial. LOST: its executor went; it will be run again."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    INVALID = "INVALID"
    PRUNED = "PRUNED"
    LOST = "LOST"
    CANCELLED = "CANCELLED"


def natural_state(counts: Mapping[str, int]) -> RunState:
    """The state of a run that nothing stopped, from how many trials ended in each state.

    Example:
        >>> str(natural_state({"COMPLETE": 1, "FAILED": 5})), str(natural_state({"INVALID": 1}))
        ('COMPLETE', 'FAILED')
    """
    if counts.get("COMPLETE") or counts.get("PRUNED"):
        return RunState.COMPLETE
    return RunState.FAILED if counts.keys() & {"FAILED", "INVALID"} else RunState.CANCELLED


@dataclass(frozen=True)
class Verdict:
    """What a returned value means: the state, the metric's number, and why it is INVALID."""

    state: TrialState
    value: float | None
    reason: str | None = None


def judge(
    outputs: Mapping[str, Any],
    reported: Mapping[str, float],
    metric: str | None,
    needed: bool = False,
) -> Verdict:
    """Find the number that counts and say whether it can be compared.

    Args:
        outputs: what the training function returned; a plain number stands under the metric's
            name, or under `value` where no metric was named.
        reported: the last reported number of each name, used where `outputs` lacks the metric.
        metric: the name that counts; None takes the only number there is, if there is just one.
        needed: without a number it is INVALID.

    Example:
        >>> judge({"accuracy": 0.9, "loss": 0.3}, {}, "accuracy")
        Verdict(state=<TrialState.COMPLETE: 'COMPLETE'>, value=0.9, reason=None)
        >>> judge({"accuracy": float("nan")}, {}, "accuracy").reason
        "metric 'accuracy' is nan"
    """
    if metric is None:
        numbers = {k: v for k, v in outputs.items() if _is_number(v)} or dict(reported)
        if len(numbers) != 1 and needed:
            have = ", ".join(numbers) or "none"
            why = f"a search needs one number, and there are: {have}. Name it with metric="
            return Verdict(TrialState.INVALID, None, why)
        if len(numbers) != 1:
            return Verdict(TrialState.COMPLETE, None)
        metric = next(iter(numbers))
    value = outputs.get(metric, reported.get(metric))
    if metric not in outputs and metric not in reported:
        have = ", ".join({**outputs, **reported}) or "nothing"
        return Verdict(
            TrialState.INVALID, None, f"metric {metric!r} was not returned nor reported; got {have}"
        )
    if not _is_number(value) or not math.isfinite(value):
        return Verdict(TrialState.INVALID, None, f"metric {metric!r} is {value!r}")
    return Verdict(TrialState.COMPLETE, float(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
