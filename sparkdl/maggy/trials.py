"""Runs in the training process. Call a training function as maggy does."""

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from sparkdl.maggy.ablation.loco import Ablation
from sparkdl.maggy.arguments import arguments_taken
from sparkdl.maggy.core.exceptions import MetricTypeError, ReturnTypeError
from sparkdl.maggy.core.reporter import Reporter

__all__ = ["ablate", "base", "call", "optimize", "repeat", "values_of"]


def call(
    function: Callable[..., Any],
    key: str,
    model_and_data: Mapping[str, Any],
    params: Mapping[str, Any],
) -> Any:
    """Call a training function with what it takes of hyperparameters, reporter, model and data.

    Args:
        function: the training function.
        key: the name of the metric.
        model_and_data: the model and the dataset of the configuration.
        params: the hyperparameters.
    """
    values = {**model_and_data, "reporter": Reporter(key), "hparams": dict(params), **params}
    return function(**arguments_taken(function, values, params))


def optimize(
    function: Callable[..., Any],
    key: str,
    model_and_data: Mapping[str, Any],
    takes_first: bool,
    /,
    **params: Any,
) -> dict[str, Any]:
    """Run a trial of a search, and return its values by name.

    Args:
        function, key, model_and_data: see `call`.
        takes_first: see `values_of`.
        **params: the hyperparameters.
    """
    return values_of(call(function, key, model_and_data, params), key, takes_first)


def repeat(
    function: Callable[..., Any],
    key: str,
    model_and_data: Mapping[str, Any],
    takes_first: bool,
    /,
    trial: int,
) -> dict[str, Any]:
    """Run a trial without hyperparameters.

    Args:
        function, key, model_and_data, takes_first: see `optimize`.
        trial: the number of the trial, which only tells the rows of tables apart.
    """
    return optimize(function, key, model_and_data, takes_first)


def base(function: Callable[..., Any], /) -> Any:
    """Run a single trial without hyperparameters, and return what the function returns.

    Args:
        function: the training function.
    """
    return call(function, "metric", {"model": None, "dataset": None}, {})


def ablate(
    function: Callable[..., Any],
    model_and_data: Mapping[str, Any],
    trials: Mapping[tuple[str, str], Ablation],
    /,
    ablated_feature: str,
    ablated_layer: str,
) -> dict[str, Any]:
    """Run a trial of an ablation study, and return its values by name.

    Args:
        function, model_and_data: see `call`.
        trials: the trials by the texts for their feature and their layers.
        ablated_feature, ablated_layer: the texts of this trial.
    """
    trial = trials[ablated_feature, ablated_layer]
    functions = {
        "dataset_function": trial.dataset_function,
        "model_function": trial.model_function,
    }
    return values_of(call(function, "metric", model_and_data, functions), "metric", True)


def values_of(returned: Any, key: str, takes_first: bool) -> dict[str, Any]:
    """Return the values of a trial by name, with its metric.

    Args:
        returned: what the training function has returned.
        key: the name of the metric.
        takes_first: of a list, or a dict without the metric, the first number is the metric.

    Raises:
        TypeError, KeyError: if there is no metric, or it is no number.

    Example:
        >>> values_of([0.25, 0.5], "Metric", takes_first=True)
        {'Metric': 0.25}
    """
    if takes_first and isinstance(returned, list | tuple) and returned:
        returned = returned[0]
    if isinstance(returned, Real):
        return {key: returned}
    if not isinstance(returned, Mapping) or not returned:
        raise ReturnTypeError(key, returned)
    values = dict(returned)
    if takes_first and key not in values:
        values = {key: next(iter(values.values())), **values}
    if key not in values:
        raise KeyError(
            f"the training function returned {', '.join(values)}, without the optimization key "
            f"{key!r}. Return it, or name another one with optimization_key=."
        )
    if not isinstance(values[key], Real):
        raise MetricTypeError(key, values[key])
    return values
