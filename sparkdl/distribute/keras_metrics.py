"""Runs in the training process. The logs of Keras over the rows of all ranks.

A metric of Keras keeps sums and counts in variables. Added over the ranks, as Keras's strategies
do, they give the value of one process that has all rows. What has no such variables is averaged.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.distribute.keras_logs import as_array
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.rows import split_rows

Logs = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The results of a model's metrics.

    Attributes:
        of_rank: of the rows of this rank, by name.
        of_all: of the rows of all ranks, by name.
    """

    of_rank: Logs
    of_all: Logs


def results_of_all(model: Any, world: Ring, has_rows: bool) -> Results:
    """Return the results of a model's metrics over all ranks; the metrics keep their state.

    Args:
        model: a model of keras or tf_keras.
        world: the ring of all ranks, which all call this function.
        has_rows: True if this rank's metrics were updated since they were reset.
    """
    variables = [v for metric in model.metrics for v in metric.variables if _aggregation(v)]
    of_rank = _results(model) if has_rows else {}
    kinds = [[_aggregation(v), list(v.shape)] for v in variables]
    descriptions = world.allgather_object(kinds if has_rows else None)
    of_ranks = [each for each in descriptions if each is not None]
    if not of_ranks or any(each != of_ranks[0] for each in of_ranks):
        return Results(of_rank, of_rank)
    sizes = [int(np.prod(shape)) for _, shape in of_ranks[0]]
    state = [v.numpy() for v in variables] if has_rows else [np.zeros(size) for size in sizes]
    # Sums of float32 would lose small counts.
    flat = [np.asarray(array, np.float64).reshape(-1) for array in state]
    total = world.allreduce(np.concatenate([*flat, np.zeros(0)]), "sum")
    if not has_rows:
        return Results(of_rank, of_rank)
    try:
        for variable, part, (kind, shape) in zip(
            variables, split_rows(total, sizes), of_ranks[0], strict=True
        ):
            value = part / len(of_ranks) if kind == "mean" else part
            variable.assign(value.reshape(shape).astype(variable.numpy().dtype))
        return Results(of_rank, _results(model))
    finally:
        for variable, array in zip(variables, state, strict=True):
            variable.assign(array)


def logs_of_all(world: Ring, logs: Mapping[str, Any], results: Results) -> Logs:
    """Return logs over all ranks, the same on each of them.

    Args:
        world: the ring of all ranks, which all call this function.
        logs: the logs of this rank, which are the results of metrics or others.
        results: the results of the metrics, see `results_of_all`.
    """
    mine = {name: as_array(value) for name, value in logs.items()}
    for name, value in mine.items():
        # A custom step may log something else by the name of a metric.
        if name in results.of_rank and _is_close(value, results.of_rank[name]):
            mine[name] = as_array(results.of_all[name]).reshape(value.shape)
    merged: Logs = {}
    of_ranks = world.allgather_object({name: value.tolist() for name, value in mine.items()})
    averaged = []
    for name in dict.fromkeys(name for each in of_ranks for name in each):
        values = [np.asarray(each[name], np.float64) for each in of_ranks if name in each]
        if not all(np.array_equal(value, values[0], equal_nan=True) for value in values):
            averaged.append(name)
            values[0] = np.mean(values, axis=0)
        merged[name] = values[0] if values[0].ndim else float(values[0])
    if averaged:
        warnings.warn(
            f"{', '.join(averaged)}: logged is the mean of the ranks' values, as they come from no "
            "variables of a metric that could be added over the ranks. It is exact only for means "
            "over equally many rows.",
            stacklevel=2,
        )
    return merged


def _results(model: Any) -> Logs:
    return {name: as_array(value) for name, value in model.get_metrics_result().items()}


def _aggregation(variable: Any) -> str | None:
    """Return how ranks combine a variable: `sum`, `mean`, or None if they do not."""
    # An enum in tf_keras.
    name = str(getattr(variable.aggregation, "name", variable.aggregation)).lower()
    return name if name in ("sum", "mean") else None


def _is_close(value: Any, result: Any) -> bool:
    """Return True if a logged value is the result of a metric, but for another graph's rounding."""
    value, result = np.ravel(value), np.ravel(result)  # Keras up to 3.10 makes numbers of some.
    return value.shape == result.shape and np.allclose(
        value, result, rtol=1e-6, atol=0, equal_nan=True
    )
