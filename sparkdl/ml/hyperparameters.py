"""Runs on the driver. Make the parameters of the function of a model params of its stage."""

import inspect
from collections.abc import Callable
from typing import Any

from pyspark.ml.param import Param, Params

from sparkdl.errors import ConfigError, named_type
from sparkdl.files.model_formats import library_of_object
from sparkdl.options import plain_number


def add_hyperparameters(
    stage: Params, function: Callable[..., Any], expected: str
) -> tuple[str, ...]:
    """Add a param to a stage for each parameter of a function; return their names.

    Args:
        stage: the stage, whose other params exist already.
        function: the function; its defaults become the defaults of the params.
        expected: a phrase that names what may stand in its place, for the message.

    Raises:
        ConfigError: if `function` is no function, or a parameter has the name of something else
            that the stage has.
    """
    if library_of_object(function) == "tf_keras":
        raise ConfigError(
            f"model is {named_type(function)} of tf_keras; expected a compiled model of "
            "Keras 3, or a function that returns one. Build the model with keras, or train it with "
            "experiment.allreduce."
        )
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"model is {function!r}, {named_type(function)}; expected {expected}.")
    kinds = inspect.Parameter
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    }
    for name, parameter in parameters.items():
        if hasattr(stage, name):
            raise ConfigError(
                f"the function of the model has a parameter {name!r}, which the stage itself has "
                "too. Rename the parameter."
            )
        doc = "parameter of the function of the model"
        setattr(stage, name, Param(stage, name, doc, typeConverter=plain_number))
        if parameter.default is not kinds.empty:
            stage._setDefault(**{name: parameter.default})
    stage._params = None  # Spark has listed the params before; it lists them again.
    return tuple(parameters)


def values_of(stage: Params, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of the parameters of a function.

    Raises:
        ConfigError: if a parameter has no value.
    """
    for name in names:
        if not stage.isDefined(name):
            raise ConfigError(
                f"the function of the model needs {name!r}, which has no value. Pass {name}=... to "
                "the stage, or give the parameter a default."
            )
    return {name: stage.getOrDefault(name) for name in names}
