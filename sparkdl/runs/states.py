"""Runs anywhere (pure). The states of runs and trials, and the state that a result leads to."""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sparkdl.training.metric_names import direction_of_name

# The beginning of the note of a COMPLETE trial without a value.
_NO_VALUE = "the trial has no value"

# A part of the reason for which a run ends whose trials lack the metric.
WRONG_METRIC = "which metric= names"


class TextEnum(str, Enum):
    """An enumeration of texts, whose members are equal to their texts and print as these."""

    def __str__(self) -> str:
        return str(self.value)


class _State(TextEnum):
    @property
    def is_final(self) -> bool:
        """True if no other state follows."""
        return self.value not in ("WAITING", "RUNNING", "PAUSED", "LOST")


class Failure(TextEnum):
    """The kind of a failure, which decides whether another attempt may succeed."""

    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    MEMORY = "out of memory"
    GPU = "GPU fault"
    LOST = "lost executor"
    DEADLINE = "start deadline"
    TIMEOUT = "timeout"
    PORT = "port taken"


class RunState(_State):
    """The state of a run. Equal to its name: `run.state == "COMPLETE"`."""

    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class TrialState(_State):
    """The state of a trial.

    PAUSED: the pruner lets it wait; it goes on from its checkpoint if it is among the best.
    LOST: its executor was lost; the trial will run again.
    """

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    INVALID = "INVALID"
    PRUNED = "PRUNED"
    LOST = "LOST"
    CANCELLED = "CANCELLED"


def natural_state(counts: Mapping[str, int]) -> RunState:
    """Return the state of a run that was not stopped, from the number of trials in each state.

    Example:
        >>> str(natural_state({"COMPLETE": 1, "FAILED": 5})), str(natural_state({"INVALID": 1}))
        ('COMPLETE', 'FAILED')
    """
    if counts.get("COMPLETE") or counts.get("PRUNED"):
        return RunState.COMPLETE
    return RunState.FAILED if counts.keys() & {"FAILED", "INVALID"} else RunState.CANCELLED


@dataclass(frozen=True)
class Verdict:
    """The evaluation of the result of a trial.

    Attributes:
        state: COMPLETE or INVALID.
        value: the value of the metric; None if there is none.
        reason: the reason for which the trial is INVALID.
        note: the reason for which a COMPLETE trial with a number has no value.
    """

    state: TrialState
    value: float | None
    reason: str | None = None
    note: str | None = None


def evaluate_metric(
    outputs: Mapping[str, Any],
    last_values: Mapping[str, float],
    metric: str | None,
    is_needed: bool = False,
    direction: str | None = None,
) -> Verdict:
    """Return the value of the metric, and the state that it gives the trial.

    Args:
        outputs: the values that the training function returned, by name. A plain number is stored
            under the name of the metric, or under `value` if no metric was named.
        last_values: the last reported value of each name, used if `outputs` lacks the metric.
        metric: the name of the metric; None takes the only number, if there is exactly one.
        is_needed: the trial is INVALID if there is no number.
        direction: `max` or `min`, the direction by which trials are compared; None if they are not
            compared. If no metric was named, a number whose name tells the other direction has no
            value.

    Example:
        >>> evaluate_metric({"accuracy": 0.9, "loss": 0.3}, {}, "accuracy")
        Verdict(state=<TrialState.COMPLETE: 'COMPLETE'>, value=0.9, reason=None, note=None)
        >>> evaluate_metric({"accuracy": float("nan")}, {}, "accuracy").reason
        "metric 'accuracy' is nan; expected a finite number"
    """
    if metric is None:
        numbers = {k: v for k, v in outputs.items() if _is_number(v)} or dict(last_values)
        if len(numbers) != 1 and is_needed:
            names = ", ".join(numbers) or "none"
            reason = f"a search needs one number, but the trial has: {names}. Name it with metric="
            return Verdict(TrialState.INVALID, None, reason)
        if len(numbers) != 1:
            note = _note_on_no_number(outputs) if direction and not numbers else None
            return Verdict(TrialState.COMPLETE, None, note=note)
        metric = next(iter(numbers))
        if direction and direction_of_name(metric) not in (None, direction):
            reason = _unclear_direction(metric, direction)
            if is_needed:
                return Verdict(TrialState.INVALID, None, reason)
            return Verdict(TrialState.COMPLETE, None, note=f"{_NO_VALUE}: {reason}")
    value = outputs.get(metric, last_values.get(metric))
    if metric not in outputs and metric not in last_values:
        names = ", ".join({**outputs, **last_values}) or "nothing"
        near = difflib.get_close_matches(metric, [*outputs, *last_values], n=1)
        other = f", or pass metric={near[0]!r}" if near else ""
        reason = f"{_missing_text(metric)}; got {names}. Return a number under this name{other}"
        return Verdict(TrialState.INVALID, None, reason)
    if not _is_number(value) or not math.isfinite(value):
        reason = f"metric {metric!r} is {value!r}; expected a finite number"
        return Verdict(TrialState.INVALID, None, reason)
    return Verdict(TrialState.COMPLETE, float(value))


def why_no_value(notes: Iterable[str | None]) -> str:
    """Return a sentence about COMPLETE trials without a value, from the notes of the trials."""
    for note in notes:
        if note and note.startswith(_NO_VALUE):
            return f"{note[:1].upper()}{note[1:]}."
    return "The trials returned no number: return one, or several with metric= for one."


def lacks_metric(error: str | None, metric: str) -> bool:
    """Return True if a trial is INVALID because it has no value under the name of the metric."""
    return (error or "").startswith(_missing_text(metric))


def _missing_text(metric: str) -> str:
    return f"metric {metric!r} was neither returned nor reported"


def _note_on_no_number(outputs: Mapping[str, Any]) -> str | None:
    """Return a note about nothing, a list, or a text that is all that the function returned."""
    if not outputs:
        return (
            f"{_NO_VALUE}: the function returned nothing (None), and reported no number. Return "
            "one number, or a dict of numbers, to compare trials"
        )
    for name, value in outputs.items():
        is_list = isinstance(value, list)
        if is_list or (isinstance(value, str) and [*outputs] == ["value"]):
            kind = "a list" if is_list else "text"
            return (
                f"{_NO_VALUE}: the returned {name!r} is {kind}, which is kept in "
                "trial.outputs. Return one number, or a dict of numbers, to compare trials"
            )
    return None


def _unclear_direction(metric: str, direction: str) -> str:
    words = {"max": "larger", "min": "smaller"}
    other = "min" if direction == "max" else "max"
    return (
        f"the only number is {metric!r}, whose name tells that {words[other]} values are better, "
        f"but the direction of the run is {direction!r}. Pass metric={metric!r} and "
        f"direction={other!r}, or direction={direction!r} if {words[direction]} values are better"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
