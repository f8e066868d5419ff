"""Runs on the driver (pure). Tell what the failed trials of a run have in common."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

# The most parameters that are named.
MAX_CLUES = 3
# A value that more than this share of the other trials have, too, tells nothing.
MAX_OTHERS = 0.25
# A clue is told only if trials that fail by chance bring one as clear as it so rarely.
MAX_CHANCE = 0.05

_FINE = (TrialState.COMPLETE, TrialState.PRUNED)
_MISSING = object()


@dataclass(frozen=True)
class _Clue:
    """A value or a range that all failed trials have in common.

    Attributes:
        text: the text, such as `units=64`.
        others: the number of other trials that have it, too.
        chance: the probability that as many trials, drawn by chance, all have it.
    """

    text: str
    others: int
    chance: float


def in_common(trials: Sequence[Trial], failed: Sequence[Trial] | None = None) -> list[str]:
    """Return what the failed trials have in common and the others have not, the clearest first.

    That is a value of a parameter, such as `units=64`, or a part of its range, such as
    `learning_rate >= 0.1`. What is said is a fact about these trials, and need not be the cause.

    Args:
        trials: all trials of the run.
        failed: the failed trials; by default those that are FAILED.

    Returns:
        A sentence for each parameter; none for fewer than two failed trials, or if no others ended,
        or for what chance alone brings in more than `MAX_CHANCE` of such runs.

    Example:
        >>> trials = [Trial(i, {"units": 32 * (1 + i % 2)}, "") for i in range(8)]
        >>> for trial in trials:
        ...     trial.state = TrialState.FAILED if trial.number % 2 else TrialState.COMPLETE
        >>> in_common(trials)
        ['All 4 failed trials have units=64, and none of the 4 others']
    """
    who = "failed trials" if failed is None else "of these trials"
    if failed is None:
        failed = [trial for trial in trials if trial.state == TrialState.FAILED]
    fine = [trial for trial in trials if trial.state in _FINE]
    if len(failed) < 2 or not fine:
        return []
    names = dict.fromkeys(name for trial in failed for name in trial.params)
    columns = {name: _values(name, failed, fine) for name in names}
    # Bonferroni's correction: any of these could have been the clue.
    possible = [c for bad, good in columns.values() for c in _chances([*bad, *good], len(bad))]
    clues = [clue for name in names if (clue := _clue(name, *columns[name]))]
    told = [
        clue
        for clue in sorted(clues, key=lambda clue: clue.others)
        if sum(chance for chance in possible if chance <= clue.chance) <= MAX_CHANCE
    ]
    return [
        f"All {len(failed)} {who} have {clue.text}, and {_of_others(clue.others, len(fine))}"
        for clue in told[:MAX_CLUES]
    ]


def _of_others(count: int, total: int) -> str:
    return f"{count or 'none'} of the {total} others"


def _values(
    name: str, failed: Sequence[Trial], fine: Sequence[Trial]
) -> tuple[list[Any], list[Any]]:
    bad, good = ([t.params.get(name, _MISSING) for t in trials] for trials in (failed, fine))
    return bad, good


def _chances(values: Sequence[Any], drawn: int) -> Iterator[float]:
    """Yield a probability for each clue that a parameter could give: its values, and its ends.

    It is the probability that trials that are drawn by chance all have the value, or are all at the
    end: of the hypergeometric distribution, where all that are drawn are of one kind.

    Args:
        values: the values of the parameter in all trials.
        drawn: the number of trials that are drawn.
    """
    total = math.comb(len(values), drawn)
    counts = Counter(map(_key, values))
    for count in counts.values():
        if drawn <= count < len(values):
            yield math.comb(count, drawn) / total
    if all(map(_is_number, values)):
        ordered = sorted(values)
        for ends in (ordered, ordered[::-1]):
            # Of an end with one value, the chance is that of the value.
            if ends[0] != ends[drawn - 1] != ends[drawn]:
                yield 1 / total


def _key(value: Any) -> Any:
    """Return what is equal for equal values of one type; some values cannot be in a set."""
    return value if value is _MISSING else (type(value), repr(value))


def _clue(name: str, bad: Sequence[Any], good: Sequence[Any]) -> _Clue | None:
    """Return what all failed trials have: a value, or an end of the range of a parameter."""
    total = math.comb(len(bad) + len(good), len(bad))
    if len(keys := {*map(_key, bad)}) == 1:
        others = sum(_key(value) in keys for value in good)
        if bad[0] is _MISSING or others > MAX_OTHERS * len(good):
            return None
        chance = math.comb(len(bad) + others, len(bad)) / total
        return _Clue(f"{name}={_text(bad[0])}", others, chance)
    if not all(map(_is_number, (*bad, *good))):
        return None
    if min(bad) > max(good):
        return _Clue(f"{name} >= {_text(min(bad))}", 0, 1 / total)
    return _Clue(f"{name} <= {_text(max(bad))}", 0, 1 / total) if max(bad) < min(good) else None


def _is_number(value: Any) -> bool:
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and math.isfinite(value)


def _text(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else value
    return text if isinstance(text, str) and len(text) <= 40 else json.dumps(value)[:40]
