"""Runs anywhere (pure). Nested features and labels: arrays in tuples and dicts."""

from collections.abc import Callable, Iterator
from typing import Any


def leaves(element: Any) -> Iterator[Any]:
    """Yield the arrays of an element, in the order of their tuples and dicts.

    Args:
        element: an array, or a tuple or dict of elements.

    Example:
        >>> list(leaves(({"x": 1, "y": (2, 3)}, 4)))
        [1, 2, 3, 4]
    """
    if isinstance(element, dict):
        element = tuple(element.values())
    if isinstance(element, tuple):
        for part in element:
            yield from leaves(part)
    else:
        yield element


def map_leaves(function: Callable[[Any], Any], element: Any) -> Any:
    """Return an element of the same structure with a function applied to each of its arrays.

    Args:
        function: called with each array, in the order of `leaves`.
        element: an array, or a tuple or dict of elements.

    Example:
        >>> map_leaves(str, ({"x": 1}, 2))
        ({'x': '1'}, '2')
    """
    if isinstance(element, dict):
        return {key: map_leaves(function, part) for key, part in element.items()}
    if isinstance(element, tuple):
        return tuple(map_leaves(function, part) for part in element)
    return function(element)


def map_together(function: Callable[[Any, Any], Any], element: Any, other: Any) -> Any:
    """Return the result of a function of each array of an element and its counterpart in another.

    Args:
        function: called with an array, and with the value at its place in `other`.
        element: an array, or a tuple or dict of elements.
        other: a value for each array, in the same structure.

    Example:
        >>> map_together(max, ({"x": 1}, 2), ({"x": 3}, 0))
        ({'x': 3}, 2)
    """
    if isinstance(element, dict):
        return {key: map_together(function, part, other[key]) for key, part in element.items()}
    if isinstance(element, tuple):
        pairs = zip(element, other, strict=True)
        return tuple(map_together(function, part, its) for part, its in pairs)
    return function(element, other)
