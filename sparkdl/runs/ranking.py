"""Runs anywhere (pure). Rank trials by one or several metrics."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial


def ranked(trials: Sequence[Trial], direction: str, repeats: int = 1) -> list[Trial]:
    """Return the COMPLETE trials with a value, best first; of equal trials the earlier one first.

    With repeats, the trials of the configuration with the best mean come first. A configuration
    of which a repeat is missing or has failed comes after all that are whole: it may be the best
    only because it has not diverged yet, or not with that seed.

    Args:
        trials: the trials of a run.
        direction: `max` or `min`.
        repeats: the number of trials of each configuration.
    """
    valued = [t for t in trials if t.state == TrialState.COMPLETE and t.value is not None]
    sign = -1.0 if direction == "max" else 1.0
    # The states of a live run change meanwhile, so that each is looked at once.
    mean, count = _means_of(valued), Counter(trial.configuration for trial in valued)
    return sorted(
        valued,
        key=lambda t: (
            count[t.configuration] < repeats,
            sign * mean[t.configuration][0],
            sign * float(t.value or 0.0),
            t.number,
        ),
    )


def means(trials: Iterable[Trial]) -> dict[int, tuple[float, float]]:
    """Return the mean and the standard deviation of each configuration's COMPLETE trials."""
    return _means_of(t for t in trials if t.state == TrialState.COMPLETE)


def _means_of(trials: Iterable[Trial]) -> dict[int, tuple[float, float]]:
    values: dict[int, list[float]] = {}
    for trial in trials:
        if trial.value is not None:
            values.setdefault(trial.configuration, []).append(trial.value)
    return {
        number: (fmean(sample), stdev(sample)) if len(sample) > 1 else (sample[0], 0.0)
        for number, sample in values.items()
    }


def num_complete(trials: Iterable[Trial]) -> Counter[int]:
    """Return the number of COMPLETE trials of each configuration."""
    return Counter(trial.configuration for trial in trials if trial.state == TrialState.COMPLETE)


def pareto(trials: Sequence[Trial], objectives: Mapping[str, str], repeats: int) -> list[Trial]:
    """Return the COMPLETE trials that no other COMPLETE trial dominates.

    A trial dominates another trial if it is better in one metric and at least as good in the rest.
    With repeats, the means of the configurations are compared, and the first trial stands for its
    configuration. Configurations of which a repeat is missing or has failed count only if all are.

    Args:
        trials: the trials of a run.
        objectives: the direction of each metric, `max` or `min`.
        repeats: the number of trials of each configuration.
    """
    signs = {name: -1 if way == "max" else 1 for name, way in objectives.items()}
    members: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            members.setdefault(trial.configuration, []).append(trial)
    whole = {number: same for number, same in members.items() if len(same) >= repeats}
    points = {
        same[0].number: tuple(
            sign * fmean(trial.metrics[name] for trial in same) for name, sign in signs.items()
        )
        for same in (whole or members).values()
    }
    by_number = {trial.number: trial for trial in trials}
    return [by_number[number] for number in pareto_front(points)]


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
