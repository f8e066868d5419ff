"""Runs in a Spark task. Load a function of the user, and call it with NumPy arrays."""

import inspect
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparkdl.inference.model_file import StoredModel
from sparkdl.inference.own_modules import OwnModules
from sparkdl.inference.returned_arrays import arrays_of
from sparkdl.inference.task_environment import TaskEnvironment
from sparkdl.inference.tensor_spec import TensorSpec, fit_rows
from sparkdl.inference.traced_model import TracedModel


def load_function(
    stored: StoredModel, inputs: Sequence[TensorSpec], environment: TaskEnvironment
) -> TracedModel:
    """Load a function; of a class, make the one instance of this Python worker.

    Args:
        stored: the function, which the driver has pickled.
        inputs: the inputs of the function.
        environment: the variables with which the function is called: a framework that it uses
            may start at the first call only.
    """
    modules = OwnModules(stored.modules)
    with environment, modules.importable():
        function = pickle.loads(stored.data or b"")
        if inspect.isclass(function):
            function = function()
    names = [spec.name for spec in inputs]

    def call(arrays: Sequence[Any]) -> list[Any]:
        arguments = [_fit(array, spec) for array, spec in zip(arrays, inputs, strict=True)]
        with environment, modules.importable():
            if stored.by_name:
                returned = function(**dict(zip(names, arguments, strict=True)))
            else:
                returned = function(*arguments)
        return arrays_of(returned, stored.outputs)

    return TracedModel(stored.outputs, call)


def _fit(array: Any, spec: TensorSpec) -> Any:
    return array if spec.dtype == "string" else fit_rows(array, spec, np.dtype(spec.dtype))
