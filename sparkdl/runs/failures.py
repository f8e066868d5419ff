"""Runs on the driver (pure). Tell what the failed trials of a run have in common."""

import json
import math
from collections.abc import Sequence
from typing import Any

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

# The most parameters that are named.
MAX_CLUES = 3
# A value that more than this share of the other trials have, too, tells nothing.
MAX_OTHERS = 0.25
# Ends of a range are told only if chance brings them so rarely.
MAX_CHANCE = 0.05

_FINE = (TrialState.COMPLETE, TrialState.PRUNED)


def in_common(trials: Sequence[Trial], failed: Sequence[Trial] | None = None) -> list[str]:
    """Return what the failed trials have in common and the others have not, the clearest first.

    That is a value of a parameter, such as `units=64`, or a part of its range, such as
    `learning_rate >= 0.1`. What is said is a fact about these trials, and need not be the cause.

    Args:
        trials: all trials of the run.
        failed: the failed trials; by default those that are FAILED.

    Returns:
        A sentence for each parameter; none for fewer than two failed trials, or if no others ended.

    Example:
        >>> trials = [Trial(i, {"units": 32 * (1 + i % 2)}, "") for i in range(4)]
        >>> for trial in trials:
        ...     trial.state = TrialState.FAILED if trial.number % 2 else TrialState.COMPLETE
        >>> in_common(trials)
        ['All 2 failed trials have units=64, and none of the 2 others']
    """
    who = "failed trials" if failed is None else "of these trials"
    if failed is None:
        failed = [trial for trial in trials if trial.state == TrialState.FAILED]
    fine = [trial for trial in trials if trial.state in _FINE]
    if len(failed) < 2 or not fine:
        return []
    names = dict.fromkeys(name for trial in failed for name in trial.params)
    clues = [clue for name in names if (clue := _clue(name, failed, fine, len(names)))]
    return [
        f"All {len(failed)} {who} have {text}, and {_of_others(count, len(fine))}"
        for count, text in sorted(clues, key=lambda clue: clue[0])[:MAX_CLUES]
    ]


def _of_others(count: int, total: int) -> str:
    return f"{count or 'none'} of the {total} others"


def _clue(
    name: str, failed: Sequence[Trial], fine: Sequence[Trial], num_names: int
) -> tuple[int, str] | None:
    """Return the number of others with what all failed trials have, and the text of that."""
    missing = object()
    bad = [trial.params.get(name, missing) for trial in failed]
    good = [trial.params.get(name, missing) for trial in fine]
    if all(type(value) is type(bad[0]) and value == bad[0] for value in bad):
        if bad[0] is missing:
            return None
        count = sum(type(value) is type(bad[0]) and value == bad[0] for value in good)
        return (count, f"{name}={_text(bad[0])}") if count <= MAX_OTHERS * len(good) else None
    return _range(name, bad, good, num_names)


def _range(
    name: str, bad: Sequence[Any], good: Sequence[Any], num_names: int
) -> tuple[int, str] | None:
    """Return the end of the range of a parameter in which all failed trials are, and no other."""
    if not all(map(_is_number, (*bad, *good))):
        return None
    # Two ends of each parameter are looked at.
    chance = 2 * num_names / math.comb(len(bad) + len(good), len(bad))
    if chance > MAX_CHANCE:
        return None
    if min(bad) > max(good):
        return 0, f"{name} >= {_text(min(bad))}"
    return (0, f"{name} <= {_text(max(bad))}") if max(bad) < min(good) else None


def _is_number(value: Any) -> bool:
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and math.isfinite(value)


def _text(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else value
    return text if isinstance(text, str) and len(text) <= 40 else json.dumps(value)[:40]
