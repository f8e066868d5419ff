"""Runs on the driver. Labels in the precision in which Keras 2 gives them to losses and metrics."""

from pyspark.ml.functions import vector_to_array
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

__all__ = ["with_single_precision"]

_LARGEST = 3.4028234663852886e38


def with_single_precision(dataset: DataFrame, column: str) -> DataFrame:
    """Return a DataFrame with the numbers of a column as 32-bit floats, if they are wider.

    The user's own metrics compute with labels and outputs, and TensorFlow mixes no dtypes. A number
    that is too large for 32 bits fails the job that reads it.

    Args:
        dataset: the DataFrame.
        column: a column of numbers, arrays or vectors.
    """
    kind = dict(dataset.dtypes).get(column)
    values = dataset[f"`{column}`"] if kind else None
    if kind == "double":
        return dataset.withColumn(column, _checked(values, _is_too_large(values), column, "float"))
    if kind == "vector":
        values, kind = vector_to_array(values), "array<double>"
    if kind != "array<double>":
        return dataset
    is_too_large = F.exists(values, _is_too_large)
    return dataset.withColumn(column, _checked(values, is_too_large, column, "array<float>"))


def _is_too_large(value: Column) -> Column:
    size = F.abs(value)
    return (size > _LARGEST) & (size < float("inf"))


def _checked(values: Column, is_too_large: Column, column: str, kind: str) -> Column:
    error = F.concat(
        F.lit(f"the label {column} is "),
        values.cast("string"),
        F.lit("; expected at most 3.4e38, the largest number of 32 bits. Scale the labels."),
    )
    return F.when(is_too_large, F.raise_error(error).cast(kind)).otherwise(values.cast(kind))
