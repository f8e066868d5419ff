"""Runs anywhere (pure). Rank trials by one or several metrics."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

__all__ = ["means", "pareto", "pareto_front", "ranked"]


def ranked(trials: Iterable[Trial], direction: str) -> list[Trial]:
    """Return the COMPLETE trials with a value, best first; of equal trials the earlier one first.

    With repeats, the trials of the configuration with the best mean come first.

    Args:
        trials: the trials of a run.
        direction: `max` or `min`.
    """
    valued = [t for t in trials if t.state == TrialState.COMPLETE and t.value is not None]
    sign = -1.0 if direction == "max" else 1.0
    mean = means(valued)
    return sorted(
        valued,
        key=lambda t: (sign * mean[t.configuration][0], sign * float(t.value or 0.0), t.number),
    )


def means(trials: Iterable[Trial]) -> dict[int, tuple[float, float]]:
    """Return the mean and the standard deviation of each configuration's COMPLETE trials."""
    values: dict[int, list[float]] = {}
    for trial in trials:
        if trial.state == TrialState.COMPLETE and trial.value is not None:
            values.setdefault(trial.configuration, []).append(trial.value)
    return {
        number: (fmean(sample), stdev(sample)) if len(sample) > 1 else (sample[0], 0.0)
        for number, sample in values.items()
    }


def pareto(trials: Iterable[Trial], objectives: Mapping[str, str]) -> list[Trial]:
    """Return the COMPLETE trials that no other COMPLETE trial dominates.

    A trial dominates another trial if it is better in one metric and at least as good in the rest.

    Args:
        trials: the trials of a run.
        objectives: the direction of each metric, `max` or `min`.
    """
    signs = {name: -1 if way == "max" else 1 for name, way in objectives.items()}
    complete = {trial.number: trial for trial in trials if trial.state == TrialState.COMPLETE}
    points = {
        number: tuple(sign * trial.metrics[name] for name, sign in signs.items())
        for number, trial in complete.items()
    }
    return [complete[number] for number in pareto_front(points)]


def pareto_front(points: Mapping[int, Sequence[float]]) -> list[int]:
    """Return the keys of the points that no other point dominates, ascending.

    Smaller coordinates are better.

    Example:
        >>> pareto_front({0: (1, 4), 1: (2, 2), 2: (3, 3), 3: (4, 1)})
        [0, 1, 3]
    """
    front: dict[int, Sequence[float]] = {}
    for key, point in sorted(points.items(), key=lambda item: tuple(item[1])):
        # In this order a point can only be dominated by an earlier point.
        if not any(_dominates(other, point) for other in front.values()):
            front[key] = point
    return sorted(front)


def _dominates(better: Sequence[float], point: Sequence[float]) -> bool:
    differs = tuple(better) != tuple(point)
    return differs and all(a <= b for a, b in zip(better, point, strict=True))
