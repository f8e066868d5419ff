"""Runs anywhere (pure). Combine lists of values into the parameters of each trial."""

import itertools
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from sparkdl.errors import ConfigError, named_type

Params = dict[str, Any]


def combine_values(values: Mapping[str, Any] | None, combine: str = "product") -> list[Params]:
    """Return the parameters of each trial, in a fixed order.

    Args:
        values: a list of values for each parameter. None or an empty dict makes one trial without
            parameters.
        combine: `product` for every combination, the last name varying fastest; `zip` for the
            first values together, the second values together, and so on.

    Raises:
        ConfigError: if the values are invalid; the message names the parameter and the fix.

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
            f"args is {named_type(values)}; expected a dict of lists, such as "
            '{"learning_rate": [0.001, 0.01]}.'
        )
    lists = {check_param_name(name): _to_list(name, choices) for name, choices in values.items()}
    if combine == "product":
        rows: Iterable[tuple[Any, ...]] = itertools.product(*lists.values())
    else:
        lengths = {name: len(items) for name, items in lists.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(
                f"combine='zip' requires lists of equal length, but got {lengths}. Make the "
                "lengths equal, or use combine='product' for every combination."
            )
        rows = zip(*lists.values(), strict=True)
    return [dict(zip(lists, row, strict=True)) for row in rows]


def check_param_name(name: object) -> str:
    """Return the name of a parameter after validating it.

    Raises:
        ConfigError: if no function can have a parameter of this name.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"{name!r} is not a parameter name; expected a Python identifier.")
    return name


def _to_list(name: str, choices: Any) -> list[Any]:
    if hasattr(choices, "tolist") and getattr(choices, "ndim", 1) > 0:
        choices = choices.tolist()  # A NumPy array or a pandas Series.
    if not isinstance(choices, list | tuple | range):
        raise ConfigError(
            f"args[{name!r}] is {choices!r}, {named_type(choices)}; expected a list of "
            f"values. {_remedy(choices)}"
        )
    if not choices:
        raise ConfigError(
            f"args[{name!r}] is empty; expected at least one value. Add a value, or remove the "
            "parameter."
        )
    return [to_json_value(name, value) for value in choices]


def _remedy(choices: Any) -> str:
    if hasattr(choices, "all_values"):  # A dimension of a search space.
        return "Call experiment.search to search over a range, or write a list of its values."
    if isinstance(choices, Iterable) and not isinstance(choices, str | bytes | Mapping):
        return "Pass list(...) of it."
    return f"Write [{choices!r}] for a single value."


def to_json_value(name: str, value: Any) -> Any:
    """Return a parameter's value in a form that JSON can store.

    A resumed run reads the value from the run directory, and a trial gets the same value in the
    first session: a tuple becomes a list, and an enum of numbers or strings its value.

    Args:
        name: name of the parameter, for the message.
        value: the value; NumPy scalars become Python numbers.

    Raises:
        ConfigError: if JSON cannot store the value.
    """
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()  # A NumPy scalar.
    if isinstance(value, list | tuple):
        return [to_json_value(name, item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: to_json_value(name, item) for key, item in value.items()}
    if isinstance(value, Enum) and isinstance(value, int | float | str):
        return to_json_value(name, value.value)
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)  # A subclass would be read back as this type.
    raise ConfigError(
        f"{name!r} holds {value!r}, {named_type(value)}; expected numbers, strings, "
        "booleans, None, lists or dicts. Pass a name for the object, and look the name up in the "
        "function."
    )
