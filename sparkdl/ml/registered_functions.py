"""Runs on the driver. Save the functions of a stage by the names under which Keras knows them.

Loading a function by any other name could run any code with arguments from the folder of the stage.
Only functions that a program has registered with Keras for being loaded are found.
"""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from sparkdl.errors import ConfigError

_REGISTER = "@keras.saving.register_keras_serializable()"


def reference_to(function: Callable[..., Any] | None, purpose: str) -> dict[str, str] | None:
    """Return the module and the registered name of a function, for JSON; None for None.

    Args:
        function: the function.
        purpose: the argument of the stage, for the message.

    Raises:
        ConfigError: if the function is not registered.
    """
    if function is None:
        return None
    import keras

    # An object such as a functools.partial has no name.
    has_name = hasattr(function, "__name__")
    name = keras.saving.get_registered_name(function) if has_name else ""
    if not name or keras.saving.get_registered_object(name) is not function:
        raise ConfigError(
            f"{purpose} is {function!r}, which cannot be saved because Keras does not know it by a "
            f"name. Decorate the function with {_REGISTER}."
        )
    return {"module": function.__module__, "name": name}


def load_function(reference: dict[str, str] | None) -> Any:
    """Return the function that `reference_to` has described.

    The module is imported if it can be. A function of a script or notebook must be defined before.

    Raises:
        ConfigError: if no function is registered under the name.
    """
    if reference is None:
        return None
    import keras

    module, name = reference["module"], reference["name"]
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
    function = keras.saving.get_registered_object(name)
    if function is None:
        raise ConfigError(
            f"the saved stage uses the function {name!r} of the module {module!r}, which is not "
            f"registered here. Define or import it before, decorated with {_REGISTER}."
        )
    return function
