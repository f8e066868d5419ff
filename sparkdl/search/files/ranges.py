"""Runs anywhere (pure). Convert the entries of a file into the dimensions of a space."""

import keyword
import re
from collections.abc import Iterable, Sequence
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.search.files.yaml_entries import Entry
from sparkdl.search.space.spaces import Categorical, Dimension, Float, Int, Space

# SageMaker does not document which scale `Auto` chooses. Here a range of three powers of ten or
# more is logarithmic. The limit is slightly below 1000 to allow for rounding errors.
AUTO_LOG_RATIO = 999.999


def space_of(params: Iterable[tuple[Entry, Dimension]], algorithm: str | None) -> Space:
    """Create a space after validating it for the training function and the algorithm.

    Args:
        params: for each parameter, the entry of its name, and its dimension.
        algorithm: name of the algorithm, or None.

    Raises:
        ConfigError: if a name is not an identifier or is used twice, or if a dimension is
            continuous and the algorithm is `grid`.
    """
    entries: dict[str, Entry] = {}
    dimensions: dict[str, Dimension] = {}
    for entry, dimension in params:
        name = entry.text()
        if not name.isidentifier():
            raise entry.error(
                f"{entry.name} is {name!r}. The training function receives its parameters by name: "
                f"write {_identifier(name)}."
            )
        if name in entries:
            raise entry.error(
                f"parameter {name!r} is defined twice, first on line {entries[name].line}."
            )
        if algorithm == "grid" and type(dimension) is Float:
            raise entry.error(
                f"a grid cannot contain the continuous range of {name!r}. Write a list of values."
            )
        entries[name] = entry
        dimensions[name] = dimension
    return Space(dimensions)


def _identifier(name: str) -> str:
    """Return the Python identifier that is most similar to `name`, for a message."""
    similar = re.sub(r"\W", "_", name.strip().lstrip("-"))
    similar = f"{similar}_" if keyword.iskeyword(similar) else similar
    similar = similar if similar.isidentifier() else f"_{similar}"
    return repr(similar) if similar.strip("_") else "a Python identifier"


def range_of(low_entry: Entry, high_entry: Entry, kind: type[Float], scale: str) -> Float:
    """Create a range of numbers.

    Args:
        low_entry, high_entry: the entries of the bounds.
        kind: `Float` or `Int`.
        scale: `linear`, `log` or `auto`; `reverse log`, which is the logarithm of low + high - x;
            or `log of 1 - x`.

    Raises:
        ConfigError: if the bounds are not numbers, are in the wrong order, or are invalid for the
            scale.
    """
    low, high = (e.whole() if kind is Int else float(e.number()) for e in (low_entry, high_entry))
    low_text = f"{low_entry.name} is {low!r}"
    high_text = f"{high_entry.name} is {high!r}"
    if low > high:
        raise high_entry.error(
            f"{high_text}, and {low_text}; `{low_entry.name} <= {high_entry.name}` must hold. Swap "
            "the bounds."
        )
    if scale == "auto":
        scale = "log" if low > 0 and high / low > AUTO_LOG_RATIO else "linear"
    if scale in ("log", "reverse log") and low <= 0:
        raise low_entry.error(f"{low_text}; expected a number above 0 for a logarithmic scale.")
    if scale == "log of 1 - x" and not (low >= 0 and high < 1):
        raise high_entry.error(
            f"{low_text}, and {high_text}; ReverseLogarithmic requires 0 <= x < 1."
        )
    mirror = {"reverse log": low + high, "log of 1 - x": 1}.get(scale)
    try:
        return kind(low, high, log=scale != "linear", mirror=mirror)
    except ConfigError as exc:  # For example, low + high is equal to high after rounding.
        raise low_entry.error(str(exc)) from exc


def choices_of(entries: Sequence[Entry], values: Sequence[Any]) -> Categorical:
    """Create a choice among `values`, which were read from `entries`.

    Raises:
        ConfigError: if two values are equal.
    """
    seen = set()
    for entry, value in zip(entries, values, strict=True):
        if value in seen:
            raise entry.error(f"{entry.name} is {value!r}, which is in the list twice. Remove one.")
        seen.add(value)
    return Categorical(values)
