"""Runs anywhere. Losses of PyTorch: the task that one implies, and its values by row."""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.ml.params import CLASSIFICATION, REGRESSION

# The task of each loss, and whether its outputs are logits: the softmax of logarithms of
# probabilities, which NLLLoss takes, are the probabilities.
_FACTS = {
    **dict.fromkeys(("CrossEntropyLoss", "cross_entropy"), (CLASSIFICATION, True)),
    **dict.fromkeys(("NLLLoss", "nll_loss"), (CLASSIFICATION, True)),
    "BCEWithLogitsLoss": (CLASSIFICATION, True),
    "binary_cross_entropy_with_logits": (CLASSIFICATION, True),
    **dict.fromkeys(("BCELoss", "binary_cross_entropy"), (CLASSIFICATION, False)),
    **dict.fromkeys(("MSELoss", "mse_loss"), (REGRESSION, False)),
    **dict.fromkeys(("L1Loss", "l1_loss"), (REGRESSION, False)),
    **dict.fromkeys(("SmoothL1Loss", "smooth_l1_loss"), (REGRESSION, False)),
    **dict.fromkeys(("HuberLoss", "huber_loss"), (REGRESSION, False)),
    **dict.fromkeys(("PoissonNLLLoss", "poisson_nll_loss"), (REGRESSION, False)),
}
_MODULES = ("torch.nn.modules.loss", "torch.nn.functional")


def name_of(function: Any) -> str:
    """Return the name of a loss: of the function, or of the class of the module."""
    return str(getattr(function, "__name__", type(function).__name__))


def is_of_torch(loss: Any) -> bool:
    """Return True for a loss of PyTorch whose task is known; False for all others."""
    module = loss.__module__ if inspect.isfunction(loss) else type(loss).__module__
    return module in _MODULES and name_of(loss) in _FACTS


def task_and_logits(loss: Any, task: str | None, from_logits: bool | None) -> tuple[str, bool]:
    """Return the task of a loss, and whether the outputs are logits.

    Args:
        loss: the loss.
        task, from_logits: what the user has said; None for what the loss implies.

    Raises:
        ConfigError: if neither the user nor the loss tells.
    """
    implied = _FACTS[name_of(loss)] if is_of_torch(loss) else None
    if task is None and implied is None:
        raise ConfigError(
            f"the loss {name_of(loss)!r} does not tell classification from regression. Set the "
            f"param task to {CLASSIFICATION!r} or {REGRESSION!r}; for a classification, also set "
            "fromLogits."
        )
    task = task or (implied or ("",))[0]
    if task == REGRESSION or from_logits is not None:
        return task, bool(from_logits)
    if implied is None or implied[0] != CLASSIFICATION:
        raise ConfigError(
            f"the loss {name_of(loss)!r} does not tell logits from probabilities. Set the param "
            "fromLogits to True if the outputs of the model are logits, otherwise to False."
        )
    return task, implied[1]


def loss_by_row(loss: Any) -> Callable[..., Any]:
    """Return a loss without its reduction, for the weights of the rows.

    Raises:
        ConfigError: if the loss has no `reduction`.
    """
    if not inspect.isfunction(loss) and hasattr(loss, "reduction"):
        unreduced: Callable[..., Any] = copy.copy(loss)
        unreduced.reduction = "none"  # type: ignore[attr-defined]
        return unreduced
    if inspect.isfunction(loss) and "reduction" in inspect.signature(loss).parameters:
        return partial(loss, reduction="none")
    raise ConfigError(
        f"weightCol needs the loss of each row, which the loss {name_of(loss)!r} does not give. "
        "Pass a loss of torch.nn, or a function loss(outputs, labels, reduction='mean') that "
        "returns one number for each row with reduction='none'."
    )
