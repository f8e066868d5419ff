"""Runs anywhere (pure). Check that a training function takes its parameters."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from sparkdl.errors import FunctionError, named_type, suggest


def check_call(function: Callable[..., Any], names: Iterable[str], argument: str = "args") -> None:
    """Validate that a function can be called with keyword arguments of these names.

    Args:
        function: the training function.
        names: the names of the arguments.
        argument: where the user has named them, for the message.

    Raises:
        FunctionError: if `function` is no function, does not take an argument of one of the
            names, or has a parameter without a default that is not among the names.

    Example:
        >>> check_call(lambda learning_rate, dropout=0.5: 0, ["learning_rate"])
    """
    if not callable(function):
        raise FunctionError(f"train is {function!r}, {named_type(function)}; expected a function.")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise FunctionError(
            f"train is {function!r}, whose body would never run when it is called. Expected an "
            "ordinary function that returns, without async or yield."
        )
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # A function written in C may have no signature.
    label = getattr(function, "__name__", repr(function))
    kinds = inspect.Parameter
    by_name = (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    named = {name for name, parameter in parameters.items() if parameter.kind in by_name}
    if not any(p.kind is kinds.VAR_KEYWORD for p in parameters.values()):
        for name in names:
            if name not in named:
                raise FunctionError(
                    f"{argument} contains {name!r}, which {label}({', '.join(parameters)}) does "
                    f"not take.{suggest(name, named)} Rename it, or add the parameter."
                )
    for name, parameter in parameters.items():
        optional = parameter.default is not kinds.empty
        if parameter.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD) or optional:
            continue
        if name not in set(names):
            values = "[...]" if argument == "args" else "..."
            raise FunctionError(
                f"{label} needs {name!r}, which {argument} does not contain. Add {name!r}: "
                f"{values} to {argument}, or give the parameter a default."
            )


def takes_one(function: Callable[..., Any]) -> bool:
    """Return True if a function can be called with a single argument.

    Example:
        >>> takes_one(lambda trial: 0), takes_one(lambda learning_rate, dropout: 0)
        (True, False)
    """
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):
        return False
    return True
