"""Runs on the driver. Save the functions of a stage by their names, where no Keras knows them.

Loading a function by any name could run any code with arguments from the folder of the stage. Only
functions that a program has marked for it are found, and the losses of PyTorch.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from sparkdl.errors import ConfigError
from sparkdl.ml.torch_losses import is_of_torch

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "_sparkdl_is_saved_by_name"


def saved_by_name(function: Function) -> Function:
    """Decorate a function, so that a stage with it can be saved, and loaded where it is defined.

    Args:
        function: a function of a module, a script or a notebook, not one inside another function.

    Returns:
        The function itself.

    Raises:
        ConfigError: if the function cannot be found by its name.

    Example:
        >>> from sparkdl import ml
        >>> @ml.saved_by_name
        ... def absolute(outputs, labels):
        ...     return (outputs - labels).abs().mean()
    """
    if not getattr(function, "__qualname__", "").isidentifier():
        raise ConfigError(
            f"saved_by_name got {function!r}; expected a function that is defined with a name at "
            "the top of a module."
        )
    setattr(function, _MARK, True)
    return function


def reference_to(function: Any, purpose: str) -> dict[str, str]:
    """Return the module and the name of a function, for JSON.

    Args:
        function: the function.
        purpose: the argument of the stage, for the message.

    Raises:
        ConfigError: if the function is not marked.
    """
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", "")
    if not _is_known(function) or _found(module, name) is not function:
        raise ConfigError(
            f"{purpose} is {function!r}, which cannot be saved: a saved stage contains no code. "
            "Define a function at the top of a module, and decorate it with "
            "@sparkdl.ml.saved_by_name."
        )
    return {"module": module, "name": name}


def load_function(reference: dict[str, str]) -> Any:
    """Return the function that `reference_to` has described.

    The module is imported if it can be. A function of a script or notebook must be defined before.

    Raises:
        ConfigError: if there is no marked function of this name.
    """
    module, name = reference["module"], reference["name"]
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
    function = _found(module, name)
    if not _is_known(function):
        raise ConfigError(
            f"the saved stage uses the function {name!r} of the module {module!r}, which is not "
            "there, or not for this use. Define or import it before, decorated with "
            "@sparkdl.ml.saved_by_name."
        )
    return function


def _found(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def _is_known(function: Any) -> bool:
    return getattr(function, _MARK, None) is True or (
        hasattr(function, "__name__") and is_of_torch(function)
    )
