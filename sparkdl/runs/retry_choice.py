"""Runs on the driver (pure). Decide which trials run when their run is resumed."""

from collections.abc import Iterable, Sequence
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

# The states, in lower case, and the numbers of trials that run again although they have ended.
Retry = frozenset[str | int]

# The beginning of the error of a trial that was CANCELLED because its run was stopped.
STOPPED = "the run was stopped"

# The beginning of the error of a trial whose Spark job was cancelled, but not by its run.
OUTSIDE = "its Spark job was cancelled outside this run"

_STATES = {
    "failed": TrialState.FAILED,
    "invalid": TrialState.INVALID,
    "cancelled": TrialState.CANCELLED,
}


def parse_retry(value: Any) -> Retry:
    """Return the `retry=` of a user as a set.

    Args:
        value: `failed`, `invalid`, `cancelled`, a list of these and numbers of trials, or None.

    Raises:
        ConfigError: if the value is anything else.

    Example:
        >>> sorted(parse_retry([3, 7])), parse_retry(None)
        ([3, 7], frozenset())
    """
    if value is None:
        return frozenset()
    items = [value] if isinstance(value, str | int) else value
    if isinstance(items, Iterable):
        items = list(items)
        if all(map(_is_valid, items)):
            return frozenset(items)
    raise ConfigError(
        f"retry is {value!r}; expected 'failed', 'invalid', 'cancelled' or a list of numbers of "
        "trials."
    )


def _is_valid(item: object) -> bool:
    if isinstance(item, str):
        return item in _STATES
    return isinstance(item, int) and not isinstance(item, bool)


def check_retry(retry: Retry, trials: Sequence[Trial]) -> None:
    """Validate the numbers of the trials to run again.

    Raises:
        ConfigError: if a trial does not exist, or has a result that must not be repeated.
    """
    for number in sorted(item for item in retry if isinstance(item, int)):
        if not 0 <= number < len(trials):
            raise ConfigError(
                f"retry contains {number}, but the run has the trials 0 to {len(trials) - 1}."
            )
        if trials[number].state in (TrialState.COMPLETE, TrialState.PRUNED):
            raise ConfigError(
                f"retry contains {number}, but trial {number} is {trials[number].state}, and its "
                "result is never repeated. Remove the number, or start a new run."
            )


def is_chosen(trial: Trial, retry: Retry) -> bool:
    """Return True if `retry` names a trial, by its number or by its state."""
    return trial.number in retry or any(
        trial.state == _STATES[name] for name in retry if isinstance(name, str)
    )


def waits_again(trial: Trial, retry: Retry = frozenset()) -> bool:
    """Return True if a trial runs when its run is resumed.

    Args:
        trial: the trial.
        retry: trials that run again although they have ended.

    Example:
        >>> failed = Trial(0, {}, "", state=TrialState.FAILED)
        >>> waits_again(failed), waits_again(failed, frozenset({"failed"}))
        (False, True)
    """
    if not trial.state.is_final or is_chosen(trial, retry):
        return True
    was_stopped = (trial.error or "").startswith((STOPPED, OUTSIDE))
    return trial.state == TrialState.CANCELLED and was_stopped


def not_tried_again(trials: Sequence[Trial], retry: Retry = frozenset()) -> str:
    """Return a sentence about trials that have not completed and are not run again, or "".

    Example:
        >>> not_tried_again([Trial(0, {}, "", state=TrialState.FAILED)])
        "1 failed trial is not run again; retry='failed' does so."
    """
    from sparkdl.runs.remedies import argument  # Imported late: readers of runs need no call.

    sentences = []
    for name, state in _STATES.items():
        trials_left_out = [t for t in trials if t.state == state and not waits_again(t, retry)]
        if trials_left_out:
            what = f"{name} trial is" if len(trials_left_out) == 1 else f"{name} trials are"
            sentences.append(
                f"{len(trials_left_out)} {what} not run again; {argument('retry', name)} does so."
            )
    return " ".join(sentences)
