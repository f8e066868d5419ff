"""Runs on the driver. Tell classification from regression by the loss of a compiled model."""

import re
from collections.abc import Sequence
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.inference.tensor_spec import TensorSpec
from sparkdl.ml.params import CLASSIFICATION, REGRESSION

__all__ = ["check_outputs", "is_from_logits", "task_of"]

# Names of functions in keras.losses.
_REGRESSION = {
    *("huber", "log_cosh", "mean_absolute_error", "mean_absolute_percentage_error"),
    *("mean_squared_error", "mean_squared_logarithmic_error", "poisson"),
}


def task_of(loss: Any) -> str:
    """Return the task of a model, `classification` or `regression`.

    Args:
        loss: the loss of the compiled model: a name, a function or an object of Keras.

    Raises:
        ConfigError: if the loss does not tell.
    """
    name = _name_of(loss)
    if "crossentropy" in name:
        return CLASSIFICATION
    if name in _REGRESSION:
        return REGRESSION
    raise ConfigError(
        f"the loss {name!r} does not tell classification from regression. Set the param task to "
        f"{CLASSIFICATION!r} or {REGRESSION!r}."
    )


def is_from_logits(loss: Any) -> bool:
    """Return True if a loss expects logits in place of probabilities."""
    config = loss.get_config() if hasattr(loss, "get_config") else {}
    return bool(config.get("from_logits"))


def check_outputs(outputs: Sequence[TensorSpec], task: str, loss: Any) -> None:
    """Validate that the outputs of a model can become the columns of a task.

    Args:
        outputs: the outputs of the model.
        task: `classification` or `regression`.
        loss: the loss of the compiled model.

    Raises:
        ConfigError: if they cannot.
    """
    if len(outputs) != 1 or outputs[0].shape is None or len(outputs[0].shape) > 1:
        raise ConfigError(
            f"the model has the outputs {', '.join(map(str, outputs))}; expected one output with "
            "a number or an array of numbers for each row. For other models use "
            "experiment.allreduce and experiment.predict."
        )
    num_values = (outputs[0].shape or (1,))[0]
    if task == CLASSIFICATION and num_values != 1 and _name_of(loss).startswith("binary_"):
        raise ConfigError(
            f"the model has {num_values} outputs and the loss {_name_of(loss)!r}, as for rows that "
            "belong to several classes, which Spark's classification does not have. Use a "
            "categorical crossentropy, or task='regression', which predicts a vector."
        )


def _name_of(loss: Any) -> str:
    import keras

    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    name = getattr(loss, "__name__", None) or type(loss).__name__
    # Losses are functions or classes: MeanSquaredError is mean_squared_error.
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
