"""Runs anywhere (pure). From lists of values to the parameters of each trial."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from sparkdl.errors import ConfigError

__all__ = ["checked_name", "combine_values", "plain"]

Params = dict[str, Any]


def combine_values(values: Mapping[str, Any] | None, combine: str = "product") -> list[Params]:
    """The parameters of each trial, in a fixed order.

    Args:
        values: a list of values for each parameter. None or empty makes one trial without any.
        combine: `product` for every combination, the last name varying fastest; `zip` for the
            first values together, the second values together, and so on.

    Raises:
        ConfigError: names the parameter, what is wrong with its values, and what to write.

    Example:
        >>> combine_values({"a": [1, 2], "b": ["x", "y"]})
        [{'a': 1, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 2, 'b': 'x'}, {'a': 2, 'b': 'y'}]
        >>> combine_values({"a": [1, 2], "b": ["x", "y"]}, "zip")
        [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}]
    """
    if combine not in ("product", "zip"):
        raise ConfigError(f"combine is {combine!r}; expected 'product' or 'zip'.")
    if values is None or (isinstance(values, Mapping) and not values):
        return [{}]
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"args is a {type(values).__name__}; expected a dict of lists, such as "
            '{"learning_rate": [0.001, 0.01]}.'
        )
    lists = {checked_name(name): _checked_list(name, given) for name, given in values.items()}
    if combine == "product":
        rows: Iterable[tuple[Any, ...]] = itertools.product(*lists.values())
    else:
        lengths = {name: len(items) for name, items in lists.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(
                f"combine='zip' needs lists of one length, but got {lengths}. Make them equal, or "
                "use combine='product' for every combination."
            )
        rows = zip(*lists.values(), strict=True)
    return [dict(zip(lists, row, strict=True)) for row in rows]


def checked_name(name: object) -> str:
    """The name of a parameter.

    Raises:
        ConfigError: no function takes it by that.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"{name!r} is not a parameter name; expected a Python identifier.")
    return name


def _checked_list(name: str, given: Any) -> list[Any]:
    if hasattr(given, "tolist") and getattr(given, "ndim", 1) > 0:
        given = given.tolist()  # A NumPy array or a pandas Series of values.
    if not isinstance(given, list | tuple | range):
        raise ConfigError(
            f"args[{name!r}] is {given!r}, a {type(given).__name__}; expected a list of values. "
            f"Write [{given!r}] for a single value."
        )
    if not given:
        raise ConfigError(f"args[{name!r}] is empty; expected at least one value, or leave it out.")
    return [plain(name, value) for value in given]


def plain(name: str, value: Any) -> Any:
    """The value as the run directory can hold it, so that a resumed run passes the same.

    Raises:
        ConfigError: it cannot; the message names the parameter.
    """
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()  # A NumPy scalar.
    if isinstance(value, list | tuple):
        return type(value)(plain(name, item) for item in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(name, item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"{name!r} holds {value!r}, a {type(value).__name__}; expected numbers, strings, "
        "booleans, None, lists or dicts. Give it a name, and look the name up in the function."
    )
