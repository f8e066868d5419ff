"""Runs on the driver (pure). The trials that have come to a rung, and their order there."""

import bisect
import itertools
from collections.abc import Mapping, Sequence

from sparkdl.search.fronts import Point, best_points, fronts, is_finite


def losses_of(values: Sequence[float], directions: Sequence[str]) -> Point:
    """Return values as a point of which smaller coordinates are better.

    Example:
        >>> losses_of([0.9, 12.0], ["max", "min"])
        (-0.9, 12.0)
    """
    pairs = zip(values, directions, strict=True)
    return tuple(-value if direction == "max" else value for value, direction in pairs)


class Rung:
    """The trials that have come to a rung.

    Trials with one metric are ordered by their values, and of equal trials the earlier one comes
    first. Trials with several metrics are ordered by `best_points`. A trial with a value that is
    not finite is never among the best.

    Example:
        >>> rung = Rung()
        >>> for number, point in enumerate([(0.3, 2.0), (0.1, 9.0), (0.4, 3.0)]):
        ...     rung.add(number, point)
        >>> rung.best(2), len(rung)
        ([0, 1], 3)
    """

    def __init__(self) -> None:
        self._points: dict[int, Point] = {}
        self._failed: set[int] = set()
        # The trials with one metric, best first.
        self._ranked: list[tuple[float, int]] = []
        self._best: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """The number of trials that have come, the failed ones included."""
        return len(self._points)

    def numbers(self) -> list[int]:
        """Return the trials that have come; those with one metric best first."""
        ranked = dict.fromkeys(number for _, number in self._ranked)
        return [*(ranked | dict.fromkeys(self._points))]

    def add(self, number: int, point: Point) -> None:
        """Add a trial with its losses."""
        self._points[number] = point
        if is_finite(point) and len(point) == 1:
            bisect.insort(self._ranked, (point[0], number))
        self._best.clear()

    def fail(self, number: int) -> None:
        """Let a trial leave its place to others, as it has no result."""
        if number in self._points:
            self._failed.add(number)
            self._best.clear()

    def remove(self, number: int) -> None:
        """Forget a trial that begins again."""
        if point := self._points.pop(number, None):
            self._failed.discard(number)
            self._ranked = [place for place in self._ranked if place != (point[0], number)]
            self._best.clear()

    def best(self, count: int) -> list[int]:
        """Return this number of the best trials, or fewer."""
        if count not in self._best:
            self._best[count] = self._best_of(count)
        return self._best[count]

    def _best_of(self, count: int) -> list[int]:
        if self._ranked:
            numbers = (number for _, number in self._ranked if number not in self._failed)
            return list(itertools.islice(numbers, count))
        return best_points(self._valid(), count)

    def _valid(self) -> Mapping[int, Point]:
        return {
            number: point
            for number, point in self._points.items()
            if number not in self._failed and is_finite(point)
        }

    def is_among(self, number: int, count: int) -> bool:
        """Return True if a trial is among the best, or equal to one of them."""
        point = self._points[number]
        return any(point == self._points[other] for other in self.best(count))

    def standing(self, number: int, count: int) -> str:
        """Return a sentence about a trial with several metrics that is not among the best.

        Example:
            >>> rung = Rung()
            >>> for number, point in enumerate([(0.3, 2.0), (0.1, 9.0), (0.4, 3.0)]):
            ...     rung.add(number, point)
            >>> rung.standing(2, 1)
            '1 of 3 trials goes on, and it is on front 2'
        """
        count = len(self.best(count))
        goes = f"{count} of {len(self)} trials {'goes' if count == 1 else 'go'} on"
        return f"{goes}, and it {place_of(number, self._valid(), self.best(count))}"


def place_of(number: int, points: Mapping[int, Point], best: Sequence[int]) -> str:
    """Return the words for the place of a trial that is not among the best.

    Args:
        number: the trial.
        points: the points of all trials.
        best: the best of them, see `best_points`.

    Example:
        >>> place_of(1, {0: (2.0, 2.0), 1: (1.0, 9.0)}, [0])
        'adds less hypervolume than others on front 1'
    """
    for i, front in enumerate(fronts(points), 1):
        if number in front:
            is_divided = not {*front}.isdisjoint(best)
            return f"{'adds less hypervolume than others' if is_divided else 'is'} on front {i}"
    return "has a value that is not finite"
