"""Runs on the driver (pure). Order points of several metrics: by fronts, then by hypervolume.

Smaller coordinates are better. Fronts are those of non-dominated sorting: Deb et al., "A Fast and
Elitist Multiobjective Genetic Algorithm: NSGA-II" (2002). Within a front, the points are chosen one
by one, each time the point that adds most to the hypervolume of those chosen before: Guerreiro,
Fonseca and Paquete, "Greedy Hypervolume Subset Selection in Low Dimensions" (2016). Contributions
are computed as in While, Bradstreet and Barone, "A Fast Way of Calculating Exact Hypervolumes"
(2012).
"""

import bisect
import heapq
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

Point = tuple[float, ...]

# The reference point is worse than the worst point of a front by this share of the range, so that
# the points at the ends of the front contribute, too.
MARGIN = 0.1


def is_finite(point: Point) -> bool:
    """Return True if all coordinates are finite numbers; other points have no place in an order."""
    return all(map(math.isfinite, point))


def fronts(points: Mapping[int, Point]) -> list[list[int]]:
    """Return the keys of the points by front, the best front first; keys ascend within a front.

    No point of a front dominates another one, and each point of a later front is dominated by one
    of the front before. Equal points are in the same front.

    Example:
        >>> fronts({0: (1, 4), 1: (2, 5), 2: (3, 3), 3: (4, 1)})
        [[0, 2, 3], [1]]
    """
    found: list[list[int]] = []
    lowest: list[float] = []  # The smallest last coordinate of each front.
    before: Point | None = None
    front = 0
    # In this order a point can only be dominated by an earlier point. If a front has a point that
    # dominates this one, so has each front before.
    for key in sorted(points, key=lambda key: points[key]):
        point = points[key]
        if point != before and len(point) == 2:
            front = bisect.bisect_right(lowest, point[1])
        elif point != before:
            front = bisect.bisect_left(found, True, key=partial(_is_free, point, points))
        if front == len(found):
            found.append([])
            lowest.append(point[-1])
        found[front].append(key)
        lowest[front] = min(lowest[front], point[-1])
        before = point
    return [sorted(members) for members in found]


def _is_free(point: Point, points: Mapping[int, Point], front: Sequence[int]) -> bool:
    """Return True if no point of a front is at least as good in each coordinate."""
    return not any(all(map(operator.le, points[key], point)) for key in front)


def hypervolume(points: Iterable[Point], reference: Point) -> float:
    """Return the volume of the space that the points dominate, up to a reference point.

    Args:
        points: the points; those that are not better than the reference in each coordinate do not
            count.
        reference: the reference point.

    Example:
        >>> hypervolume([(1, 3), (2, 2), (3, 3)], (4, 4))
        5.0
    """
    inside = {p for p in points if all(a < b for a, b in zip(p, reference, strict=True))}
    if len(reference) == 1:
        return float(reference[0] - min((p[0] for p in inside), default=reference[0]))
    if len(reference) == 2:
        return _area(inside, reference)
    by_key = dict(enumerate(sorted(inside)))
    front = [by_key[key] for key in fronts(by_key)[0]] if by_key else []
    return sum(
        (contribution(point, front[i + 1 :], reference) for i, point in enumerate(front)), 0.0
    )


def _area(points: Iterable[Point], reference: Point) -> float:
    area, lowest = 0.0, reference[1]
    for x, y in sorted(points):
        if y < lowest:
            area += (reference[0] - x) * (lowest - y)
            lowest = y
    return area


def contribution(point: Point, others: Iterable[Point], reference: Point) -> float:
    """Return the volume that a point dominates and other points do not.

    Example:
        >>> contribution((1, 3), [(2, 2)], (4, 4))
        1.0
    """
    sides = [b - a for a, b in zip(point, reference, strict=True)]
    if min(sides) <= 0:
        return 0.0
    shared = [tuple(map(max, point, other)) for other in others]
    return max(0.0, math.prod(sides) - hypervolume(shared, reference))


def best_points(points: Mapping[int, Point], count: int) -> list[int]:
    """Return the keys of this number of points, those of the best fronts.

    Of the last front that counts, those points are taken that dominate the largest volume together,
    chosen one by one.

    Example:
        >>> best_points({0: (0, 4), 1: (2, 2), 2: (1.9, 2.2), 3: (4, 0), 4: (4, 4)}, 2)
        [1, 0]
    """
    chosen: list[int] = []
    for front in fronts(points):
        room = count - len(chosen)
        if room <= 0:
            break
        chosen += front if len(front) <= room else _spread(front, points, room)
    return chosen


def _spread(front: Sequence[int], points: Mapping[int, Point], count: int) -> list[int]:
    """Choose the points of a front one by one by what they add to the hypervolume."""
    scaled = _scaled(front, points)
    reference = (1.0 + MARGIN,) * len(points[front[0]])
    chosen: list[int] = []
    others: list[Point] = []
    # What a point adds becomes smaller with each chosen point, so that an old number is a bound.
    bounds = [(-contribution(scaled[key], (), reference), key, 0) for key in front]
    heapq.heapify(bounds)
    while len(chosen) < count:
        bound, key, num_chosen = heapq.heappop(bounds)
        if num_chosen < len(chosen):
            i = bisect.bisect(others, scaled[key])
            # Of two coordinates, only the points beside this one dominate a part of its area.
            beside = others[max(0, i - 1) : i + 1] if len(reference) == 2 else others
            bound = -contribution(scaled[key], beside, reference)
            heapq.heappush(bounds, (bound, key, len(chosen)))
        else:
            chosen.append(key)
            bisect.insort(others, scaled[key])
    return chosen


def _scaled(front: Sequence[int], points: Mapping[int, Point]) -> dict[int, Point]:
    """Return the points with each coordinate from 0 to 1."""
    columns = []
    for column in zip(*(points[key] for key in front), strict=True):
        low, half = min(column), max(column) / 2 - min(column) / 2  # Half of it never overflows.
        columns.append([(value / 2 - low / 2) / half if half else 0.0 for value in column])
    return dict(zip(front, zip(*columns, strict=True), strict=True))
