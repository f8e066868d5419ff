"""Runs anywhere (pure). Whether a function can be called as it will be."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from sparkdl.errors import FunctionError, suggest

__all__ = ["check_call", "takes_one"]


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
