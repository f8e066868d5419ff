"""Runs anywhere (pure). The points of a space that a search may still try."""

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sparkdl.search.space.constraints import Constraints
from sparkdl.search.space.spaces import Space

# With this many random points in a row that may not be tried, only few others may.
MAX_DRAWS = 100

# In a space without a known number of points, this many show that the constraints allow none.
MAX_BLIND_DRAWS = 10_000

NO_CONSTRAINTS = Constraints([], [])


class UntriedPoints:
    """The points of a space that satisfy its constraints, without those that were tried.

    All points are dicts of the values that Optuna samples. A point that runs counts as tried.

    Args:
        space: the space.
        constraints: what its parameters must satisfy.
        size: the number of points that satisfy the constraints; None if it is not known.

    Example:
        >>> points = UntriedPoints(Space.of({"layers": [1, 2], "optimizer": ["adam", "sgd"]}),
        ...                        NO_CONSTRAINTS, 4)
        >>> points.remove({"layers": 2, "optimizer": "sgd"})
        >>> points.num_left(), points.num_left({"layers": 2})
        (3, 1)
    """

    def __init__(
        self, space: Space, constraints: Constraints = NO_CONSTRAINTS, size: int | None = None
    ) -> None:
        self._space = space
        self._constraints = constraints
        self._size = size
        self._tried_keys: set[str] = set()

    def remove(self, point: Mapping[str, Any]) -> None:
        """Take note of a point that was tried."""
        if self.has(point):  # Other constraints may have allowed it, before a resume.
            self._tried_keys.add(_key(point))

    def has(self, point: Mapping[str, Any]) -> bool:
        """Return True if a point may be tried."""
        if _key(point) in self._tried_keys:
            return False
        return self._constraints.is_empty or self._constraints.allow(self._space.params(point))

    def num_left(self, fixed: Mapping[str, Any] = MappingProxyType({})) -> int | None:
        """Return the number of points that may be tried; None if it is not known.

        Args:
            fixed: count only points with these values.
        """
        if fixed and self._space.is_point(fixed):
            return int(self.has(fixed))
        if self._size is None:
            return None
        if not fixed:
            return self._size - len(self._tried_keys)
        return sum(map(self.has, self._space.points(fixed)))

    def draw(
        self, choose: random.Random, fixed: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any] | None:
        """Return a random point that may be tried; None if there is none.

        Args:
            choose: the source of chance.
            fixed: values that the point must have.
        """
        for _ in range(MAX_BLIND_DRAWS if self._size is None else MAX_DRAWS):
            point = self._space.choose(
                lambda key, dimension: fixed[key] if key in fixed else dimension.draw(choose)
            )
            if self.has(point):
                return point
        if self._size is None:
            return None
        points = [point for point in self._space.points(fixed) if self.has(point)]
        return choose.choice(points) if points else None


def count_points(space: Space, constraints: Constraints, most: float) -> int | None:
    """Return the number of points that satisfy constraints.

    Args:
        space: the space.
        constraints: what its parameters must satisfy.
        most: points are counted one by one up to this number of points of the space.

    Returns:
        The number; None if a dimension is continuous, or the space has more points than `most`.
    """
    size = space.num_points()
    if constraints.is_empty or size is None:
        return size
    if size > most:
        return None
    return sum(constraints.allow(space.params(point)) for point in space.points())


def grid_points(space: Space, first: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each point of a space once, starting with points that match the params in `first`.

    Raises:
        ConfigError: if a dimension is continuous.

    Example:
        >>> space = Space.of({"a": [1, 2], "b": [3, 4]})
        >>> list(grid_points(space, [{"b": 4}]))
        [{'a': 1, 'b': 4}, {'a': 1, 'b': 3}, {'a': 2, 'b': 3}, {'a': 2, 'b': 4}]
    """
    space.check_finite()
    first_points: list[dict[str, Any]] = []
    for params in first:
        points = (point for point in space.points() if params.items() <= point.items())
        first_points += itertools.islice(
            (point for point in points if point not in first_points), 1
        )
    yield from first_points
    yield from (point for point in space.points() if point not in first_points)


def _key(point: Mapping[str, Any]) -> str:
    return json.dumps({name: _text(value) for name, value in point.items()}, sort_keys=True)


def _text(value: Any) -> str:
    # Optuna and the list of all values add steps in different ways: 0.30000000000000004 is 0.3.
    return f"{value:.12g}" if isinstance(value, float) else json.dumps(value)
