"""Runs anywhere (pure). Pass a training function what it takes by name, as maggy does."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sparkdl.runner.signatures import check_call

__all__ = ["accepts", "arguments_taken", "check_function"]

# The arguments that maggy passes beside the hyperparameters.
_SPECIAL = ("reporter", "hparams", "model", "dataset")


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Return True if a function has a parameter of this name.

    Example:
        >>> accepts(lambda kernel, **others: 0, "kernel"), accepts(lambda **others: 0, "kernel")
        (True, False)
    """
    return name in inspect.signature(function).parameters


def arguments_taken(
    function: Callable[..., Any], values: Mapping[str, Any], names_of_kwargs: Collection[str] = ()
) -> dict[str, Any]:
    """Return the arguments that a function takes by name.

    Args:
        function: the training function.
        values: the arguments by name.
        names_of_kwargs: the names of those that a function with `**kwargs` gets, too.

    Example:
        >>> values = {"kernel": 3, "reporter": None, "model": None}
        >>> arguments_taken(lambda kernel, reporter: 0, values)
        {'kernel': 3, 'reporter': None}
    """
    parameters = inspect.signature(function).parameters
    is_open = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    names = {*parameters, *(names_of_kwargs if is_open else ())}
    return {name: value for name, value in values.items() if name in names}


def check_function(function: Any, names: Collection[str], takes_all: bool = False) -> None:
    """Validate a training function before anything starts.

    Args:
        function: the training function.
        names: the names of the hyperparameters.
        takes_all: it has to take each of them, by name or in a dict `hparams`.

    Raises:
        FunctionError: if it is no function, needs other arguments, or does not take the names.
    """
    if not callable(function):
        check_call(function, names)
    known = arguments_taken(function, dict.fromkeys((*_SPECIAL, *names)), names)
    is_strict = takes_all and not accepts(function, "hparams")
    check_call(function, {*known, *(names if is_strict else ())}, "searchspace")
