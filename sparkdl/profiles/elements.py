"""Runs anywhere. The elements of a column of arrays, which are features if all have one length.

A model takes the elements of a vector by their place. To compare all of them as one distribution
would not tell that two features have changed places, or that a rare one has changed.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.errors import ConfigError

# Of longer arrays, this number of elements are features.
MAX_ELEMENTS = 100

# In place of the size of the arrays of a column: there was none, or they differ.
NO_SIZE, MANY_SIZES = -1, -2
# In place of the number of an element: all of them.
WHOLE = -1

# The number of elements that are features, or their numbers: for all columns, or by column.
Choice = int | Sequence[int]
Elements = Choice | Mapping[str, Choice]

_logger = logging.getLogger("sparkdl.profiles")


def choice_of(elements: Elements, column: str) -> Choice:
    """Return the elements of a column that are features.

    Raises:
        ConfigError: if they are no number and no list of numbers from 0 on.
    """
    choice = elements.get(column, MAX_ELEMENTS) if isinstance(elements, Mapping) else elements
    numbers = [choice] if isinstance(choice, int) else choice
    is_list = isinstance(numbers, list | tuple | range)
    if not is_list or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ConfigError(
            f"elements has {choice!r} for the column {column!r}; expected the number of elements "
            "that are compared each, or a list of their numbers from 0 on."
        )
    return choice if isinstance(choice, int) else tuple(choice)


def chosen(choice: Choice, size: int) -> list[int]:
    """Return the numbers of the elements of arrays that are features.

    Args:
        choice: how many elements, which are spread evenly; or their numbers.
        size: the length of the arrays.

    Example:
        >>> chosen(4, 10), chosen([9, 2], 10), chosen(4, 3)
        ([0, 3, 6, 9], [2, 9], [0, 1, 2])
    """
    if not isinstance(choice, int):
        return sorted({number for number in choice if number < size})
    if choice >= size:
        return list(range(size))
    return [int(number) for number in np.linspace(0, size - 1, choice).round()]


def names_of(column: str, size: int, metadata: Mapping[str, Any]) -> list[str]:
    """Return a name for each element: with the name that Spark ML gives it, or with its number.

    Args:
        column: the name of the column.
        size: the length of the arrays.
        metadata: the metadata of the column, to which VectorAssembler adds the names of its inputs.

    Example:
        >>> attributes = {"numeric": [{"idx": 1, "name": "age"}]}
        >>> names_of("x", 3, {"ml_attr": {"attrs": attributes, "num_attrs": 3}})
        ['x[0]', 'x[age]', 'x[2]']
    """
    names = [str(number) for number in range(size)]
    attributes = metadata.get("ml_attr", {})
    groups = attributes.get("attrs", {}).values() if attributes.get("num_attrs") == size else ()
    for attribute in (attribute for group in groups for attribute in group):
        if "name" in attribute and 0 <= attribute.get("idx", -1) < size:
            names[attribute["idx"]] = attribute["name"]
    if len(set(names)) < size:  # An input of VectorAssembler may be there twice.
        names = [str(number) for number in range(size)]
    return [f"{column}[{name}]" for name in names]


def sizes_of(column: pa.Array) -> list[int]:
    """Return the lengths of the arrays of a column, each once."""
    sizes: list[int] = pc.list_value_length(column).drop_null().unique().to_pylist()
    return sizes


def matrix_of(column: pa.Array, size: int) -> tuple[Any, Any]:
    """Return the elements of the arrays that have a length, and which of them are not null.

    Args:
        column: arrays of doubles.
        size: the length; arrays of other lengths, and null ones, are left out.

    Example:
        >>> values, is_valid = matrix_of(pa.array([[1.0, None], None, [3.0]]), 2)
        >>> values.tolist(), is_valid.tolist()
        ([[1.0, nan]], [[True, False]])
    """
    flat = column.filter(pc.equal(pc.list_value_length(column), size)).flatten()
    values = flat.to_numpy(zero_copy_only=False)
    is_valid = flat.is_valid().to_numpy(zero_copy_only=False)
    return values.reshape(-1, size), is_valid.reshape(-1, size)


def column_of(name: str, feature: Mapping[str, Any]) -> str:
    """Return the column of a feature of a profile."""
    return str(feature.get("column", name))


def is_chosen(name: str, feature: Mapping[str, Any], names: Sequence[str] | None) -> bool:
    """Return True if names have a feature, or the column of its element; None has all."""
    return names is None or name in names or column_of(name, feature) in names


def remarks(features: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what a comparison of arrays with these features of a profile cannot tell.

    Example:
        >>> remarks({"x": {"kind": "array", "size": None}})
        ["'x' has arrays of different lengths: all elements are compared as one distribution."]
    """
    texts = []
    for name, feature in features.items():
        if feature.get("kind") != "array":
            continue
        if "size" not in feature:
            texts.append(
                f"the profile of {name!r} is of an older version of sparkdl: all elements are "
                "compared as one distribution, so that a feature in them can drift unseen. Make "
                "the profile again: monitoring.profile(df), or models.export(..., profile=df)."
            )
        elif feature["size"] is None:
            texts.append(
                f"{name!r} has arrays of different lengths: all elements are compared as one "
                "distribution."
            )
        elif feature["size"]:
            numbers = [f["element"] for f in features.values() if f.get("column") == name]
            texts.append(_text_of_long(name, feature["size"], numbers))
    return texts


def _text_of_long(name: str, size: int, numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
    which = f"{len(numbers)} are compared each ({shown})" if numbers else "none is compared alone"
    return (
        f"of the {size} elements of {name!r}, {which}; the other {size - len(numbers)} are "
        "compared only in one distribution of all elements. Choose others with "
        f"monitoring.profile(df, elements={{{name!r}: {size}}}), or a list of their numbers."
    )


def warn(features: Mapping[str, Mapping[str, Any]]) -> None:
    """Log what a comparison with a new profile cannot tell."""
    for text in remarks(features):
        _logger.warning("%s", text)
