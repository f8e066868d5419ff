"""Runs anywhere (pure). From what stands in a file to the parameters of a space."""

import keyword
import re
from collections.abc import Iterable, Sequence
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.search.files.yaml_entries import Entry
from sparkdl.search.space.spaces import Categorical, Dimension, Float, Int, Space

__all__ = ["choices_of", "range_of", "space_of"]

# SageMaker does not say what its scaling `Auto` chooses. Here: log from three powers of ten on,
# short of which rounding must not count.
AUTO_LOG = 999.999


def space_of(found: Iterable[tuple[Entry, Dimension]], algorithm: str | None) -> Space:
    """A space, and that the training function and the algorithm can take it.

    Args:
        found: where the name of each parameter stands, and its values.
        algorithm: `grid`, another one, or None.

    Raises:
        ConfigError: a name is no identifier, or is there twice; a grid of what has no end.
    """
    seen: dict[str, Entry] = {}
    dimensions: dict[str, Dimension] = {}
    for entry, dimension in found:
        name = entry.text()
        if not name.isidentifier():
            raise entry.wrong(
                f"{entry.name} is {name!r}. The training function takes its parameters by name: "
                f"write {_identifier(name)}."
            )
        if name in seen:
            raise entry.wrong(
                f"parameter {name!r} is there twice, first on line {seen[name].line}."
            )
        if algorithm == "grid" and type(dimension) is Float:
            raise entry.wrong(
                f"a grid cannot have every value of {name!r}. Write a list of values."
            )
        seen[name], dimensions[name] = entry, dimension
    return Space(dimensions)


def _identifier(name: str) -> str:
    """The nearest to `name` that a Python function can take."""
    near = re.sub(r"\W", "_", name.strip().lstrip("-"))
    near = f"{near}_" if keyword.iskeyword(near) else near
    near = near if near.isidentifier() else f"_{near}"
    return repr(near) if near.strip("_") else "a Python identifier"


def range_of(low_at: Entry, high_at: Entry, kind: type[Float], scale: str) -> Float:
    """A range of numbers.

    Args:
        low_at, high_at: where the bounds stand.
        kind: `Float` or `Int`.
        scale: `linear`, `log`, `auto`; `reverse log` is log of low + high - x.

    Raises:
        ConfigError: they are no numbers, in the wrong order, or not for this scale.
    """
    low, high = (e.whole() if kind is Int else float(e.number()) for e in (low_at, high_at))
    least, most = f"{low_at.name} is {low!r}", f"{high_at.name} is {high!r}"
    if low > high:
        raise high_at.wrong(
            f"{most}, and {least}; `{low_at.name} <= {high_at.name}` must hold. Swap them."
        )
    if scale == "auto":
        scale = "log" if low > 0 and high / low > AUTO_LOG else "linear"
    if scale in ("log", "reverse log") and low <= 0:
        raise low_at.wrong(f"{least}; expected a number above 0, as the scale is logarithmic.")
    if scale == "log of 1 - x" and not (low >= 0 and high < 1):
        raise high_at.wrong(f"{least}, and {most}; ReverseLogarithmic needs 0 <= x < 1.")
    mirror = {"reverse log": low + high, "log of 1 - x": 1}.get(scale)
    try:
        return kind(low, high, log=scale != "linear", mirror=mirror)
    except ConfigError as exc:  # Such as a low that is lost in the rounding of low + high.
        raise low_at.wrong(str(exc)) from exc


def choices_of(entries: Sequence[Entry], values: Sequence[Any]) -> Categorical:
    """A choice among `values`, which were read from `entries`.

    Raises:
        ConfigError: two of them are equal.
    """
    seen = set()
    for entry, value in zip(entries, values, strict=True):
        if value in seen:
            raise entry.wrong(f"{entry.name} is {value!r}, which is there twice. Remove one.")
        seen.add(value)
    return Categorical(values)
