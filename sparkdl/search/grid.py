"""Where it runs: anywhere (pure). From lists of values to the parameters of each trial."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sparkdl.errors import ConfigError, FunctionError, suggest

__all__ = ["check_call", "checked_name", "combine_values", "plain", "takes_one"]

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


def check_call(function: Callable[..., Any], names: Iterable[str]) -> None:
    """See that `function` can be called with keyword arguments of these names.

    Raises:
        FunctionError: it is no function, or does not take a name, or needs one that is missing.

    Example:
        >>> check_call(lambda learning_rate, dropout=0.5: 0, ["learning_rate"])
    """
    if not callable(function):
        raise FunctionError(
            f"train is {function!r}, a {type(function).__name__}; expected a function."
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise FunctionError(
            f"train is {function!r}, whose body would never run; expected an ordinary function "
            "that returns, without async or yield."
        )
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # Written in C: it says nothing about its parameters.
    label = getattr(function, "__name__", repr(function))
    kinds = inspect.Parameter
    named = {
        n
        for n, p in parameters.items()
        if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    }
    if not any(p.kind is kinds.VAR_KEYWORD for p in parameters.values()):
        for name in names:
            if name not in named:
                raise FunctionError(
                    f"args has {name!r}, which {label}({', '.join(parameters)}) does not take."
                    f"{suggest(name, named)} Rename it, or add the parameter."
                )
    for name, parameter in parameters.items():
        optional = parameter.default is not kinds.empty
        if parameter.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD) or optional:
            continue
        if name not in set(names):
            raise FunctionError(
                f"{label} needs {name!r}, which args does not have. Add {name!r}: [...] to args, "
                "or give the parameter a default."
            )


def takes_one(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with a single argument.

    Example:
        >>> takes_one(lambda trial: 0), takes_one(lambda learning_rate, dropout: 0)
        (True, False)
    """
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):
        return False
    return True
