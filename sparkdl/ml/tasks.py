"""Runs on the driver. Tell classification from regression by the loss of a compiled model."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.inference.tensor_spec import TensorSpec
from sparkdl.ml.params import CLASSIFICATION, REGRESSION

# Names of functions in keras.losses.
_REGRESSION = {
    *("huber", "log_cosh", "mean_absolute_error", "mean_absolute_percentage_error"),
    *("mean_squared_error", "mean_squared_logarithmic_error", "poisson"),
}


def only_loss(loss: Any) -> Any:
    """Return the loss of a model with one output, which may be in a list, or a dict by output."""
    while isinstance(loss, list | tuple | Mapping) and len(loss) == 1:
        [loss] = loss.values() if isinstance(loss, Mapping) else loss
    return loss


def task_of(loss: Any) -> str:
    """Return the task of a model, `classification` or `regression`.

    Args:
        loss: the loss of the compiled model: a name, a function or an object of Keras.

    Raises:
        ConfigError: if the loss does not tell.
    """
    name = name_of(loss)
    # A function of the user may have any name.
    if _is_of_keras(loss):
        if "crossentropy" in name:
            return CLASSIFICATION
        if name in _REGRESSION:
            return REGRESSION
    raise ConfigError(
        f"the loss {name!r} does not tell classification from regression. Set the param task to "
        f"{CLASSIFICATION!r} or {REGRESSION!r}; for a classification with a loss of your own, also "
        "set fromLogits."
    )


def is_from_logits(loss: Any) -> bool:
    """Return True if a loss of a classification expects logits in place of probabilities.

    Args:
        loss: the loss of the compiled model: a name, a function or an object of Keras.

    Raises:
        ConfigError: if the loss is the user's own and does not tell.
    """
    config = loss.get_config() if hasattr(loss, "get_config") else {}
    if "from_logits" not in config and not _is_of_keras(loss):
        raise ConfigError(
            f"the loss {name_of(loss)!r} does not tell logits from probabilities. Set the param "
            "fromLogits to True if the outputs of the model are logits, otherwise to False."
        )
    return bool(config.get("from_logits"))


def check_outputs(outputs: Sequence[TensorSpec], task: str, loss: str) -> None:
    """Validate that the outputs of a model can become the columns of a task.

    Args:
        outputs: the outputs of the model.
        task: `classification` or `regression`.
        loss: the name of the loss.

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
    if task == CLASSIFICATION and num_values != 1 and loss.startswith(("binary_", "BCE")):
        raise ConfigError(
            f"the model has {num_values} outputs and the loss {loss!r}, as for rows that "
            "belong to several classes, which Spark's classification does not have. Use a "
            "categorical crossentropy, or task='regression', which predicts a vector."
        )


def _is_of_keras(loss: Any) -> bool:
    loss = _object_of(loss)
    module = str(getattr(loss, "__module__", None) or type(loss).__module__)
    return module.partition(".")[0] == "keras"


def _object_of(loss: Any) -> Any:
    import keras

    return keras.losses.get(loss) if isinstance(loss, str) else loss


def name_of(loss: Any) -> str:
    """Return the name of a loss of Keras, as that of its function."""
    loss = _object_of(loss)
    name = getattr(loss, "__name__", None) or type(loss).__name__
    # Losses are functions or classes: MeanSquaredError is mean_squared_error.
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
