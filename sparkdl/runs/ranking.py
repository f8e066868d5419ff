"""Runs anywhere (pure). Which trials are better."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

__all__ = ["means", "pareto", "pareto_front", "ranked"]


def ranked(trials: Iterable[Trial], direction: str) -> list[Trial]:
    """The COMPLETE trials with a value, best first; among equals the earlier one.

    With repeats, those of the configuration with the best mean come first.
    """
    valued = [t for t in trials if t.state == TrialState.COMPLETE and t.value is not None]
    sign, mean = -1.0 if direction == "max" else 1.0, means(valued)
    return sorted(
        valued,
        key=lambda t: (sign * mean[t.configuration][0], sign * float(t.value or 0.0), t.number),
    )


def means(trials: Iterable[Trial]) -> dict[int, tuple[float, float]]:
    """Of each configuration, the mean of its COMPLETE trials and their standard deviation."""
    values: dict[int, list[float]] = {}
    for trial in trials:
        if trial.state == TrialState.COMPLETE and trial.value is not None:
            values.setdefault(trial.configuration, []).append(trial.value)
    return {
        number: (fmean(found), stdev(found)) if len(found) > 1 else (found[0], 0.0)
        for number, found in values.items()
    }


def pareto(trials: Iterable[Trial], objectives: Mapping[str, str]) -> list[Trial]:
    """The COMPLETE trials that no other beats in one metric and equals in the rest.

    Args:
        trials: all of them.
        objectives: the direction of each metric.
    """
    signs = {name: -1 if way == "max" else 1 for name, way in objectives.items()}
    complete = {trial.number: trial for trial in trials if trial.state == TrialState.COMPLETE}
    points = {
        number: tuple(sign * trial.metrics[name] for name, sign in signs.items())
        for number, trial in complete.items()
    }
    return [complete[number] for number in pareto_front(points)]


def pareto_front(points: Mapping[int, Sequence[float]]) -> list[int]:
    """The keys of the points that no other one dominates; small is good in each coordinate.

    Example:
        >>> pareto_front({0: (1, 4), 1: (2, 2), 2: (3, 3), 3: (4, 1)})
        [0, 1, 3]
    """
    front: dict[int, Sequence[float]] = {}
    for key, point in sorted(points.items(), key=lambda item: tuple(item[1])):
        # Sorted so, a point is dominated by one that came before, or by none.
        if not any(_dominates(other, point) for other in front.values()):
            front[key] = point
    return sorted(front)


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return tuple(one) != tuple(other) and all(a <= b for a, b in zip(one, other, strict=True))
