"""Runs on the driver. Turn the output of a model into the columns that Spark's evaluators read."""

from collections.abc import Callable
from typing import Any

from pyspark.ml.functions import array_to_vector
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def regression_column(output: Column, is_array: bool) -> Column:
    """Return the prediction of a regression: a double, or a vector for several targets.

    Args:
        output: the output of the model.
        is_array: True if the output is a column of arrays.
    """
    return array_to_vector(output.cast("array<double>")) if is_array else output.cast("double")


def classification_columns(
    df: DataFrame, output: str, is_array: bool, from_logits: bool
) -> tuple[Column, Column, Column]:
    """Return the columns of a classification: raw prediction, probability and prediction.

    Probabilities are the softmax of several logits, and the sigmoid of one. With one output, which
    is for the class 1, the raw prediction is `[-z, z]` for a logit `z` and `[1 - p, p]` for a
    probability, as `LogisticRegression` of Spark ML has it.

    Args:
        df: the DataFrame.
        output: name of the column with the output of the model.
        is_array: True if that column has arrays, with a number for each class; False if it has a
            number for the class 1.
        from_logits: True if the outputs are logits.
    """
    if is_array:
        raw = df[output].cast("array<double>")
        probability = _softmax(raw) if from_logits else raw
        # Positions count from 1. In Spark 3.5, `F.array_position` takes no column as the value.
        prediction = F.call_function("array_position", raw, F.array_max(raw)) - 1
    else:
        value = df[output].cast("double")
        positive = 1 / (1 + F.exp(-value)) if from_logits else value
        probability = F.array(1 - positive, positive)
        raw = F.array(-value, value) if from_logits else probability
        # Spark holds NaN to be greater than every number.
        prediction = (positive > 0.5) & ~F.isnan(positive)
    return array_to_vector(raw), array_to_vector(probability), prediction.cast("double")


def _softmax(logits: Column) -> Column:
    def exponentials(largest: Column) -> Column:
        # The largest logit is subtracted, so that no exponential overflows.
        return F.transform(logits, lambda logit: F.exp(logit - largest))

    def divided(values: Any) -> Column:
        total = F.aggregate(values, F.lit(0.0), lambda total, each: total + each)
        return _once(total, lambda total: F.transform(values, lambda each: each / total))

    return _once(_once(F.array_max(logits), exponentials), divided)


def _once(value: Column, use: Callable[[Any], Column]) -> Column:
    """Return `use(value)`, for which Spark computes the value once.

    Spark evaluates what a lambda refers to anew for each element, but not the lambda's argument.
    """
    return F.transform(F.array(value), use)[0]
