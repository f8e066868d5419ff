"""Runs on the driver. Select the rows and columns of a DataFrame that train and validate."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.data.column_selection import ColumnSelection
from sparkdl.errors import ConfigError
from sparkdl.inference.prediction import check_dataframe
from sparkdl.ml.params import TrainingParams


def training_rows(dataset: DataFrame, params: TrainingParams) -> dict[str, DataFrame]:
    """Return the rows `train` and, if there are any, `validation`, with the columns in use.

    Args:
        dataset: all rows.
        params: the params that name the columns and the rows that validate.

    Raises:
        ConfigError: if a column does not exist, labels are text, or params contradict each other.
    """
    check_dataframe(dataset, params.getBatchSize())
    label = params.getLabelCol()
    weight = params.getWeightCol()
    indicator = params.getValidationIndicatorCol()
    fraction = params.getValidationFraction()
    features = params.getFeaturesCol()
    targets = tuple(name for name in (label, weight) if name)
    ColumnSelection.among(
        dataset.columns, features, (*targets, *([indicator] if indicator else ()))
    )
    if dataset.schema[label].dataType.typeName() == "string":
        raise ConfigError(
            f"the labels in the column {label!r} are strings; expected numbers. Use StringIndexer."
        )
    if params.getBatchSize() % params.getNumWorkers():
        raise ConfigError(
            f"batchSize is {params.getBatchSize()} for numWorkers={params.getNumWorkers()}; "
            "expected a multiple, because each step has equal shares of the workers."
        )
    used = ColumnSelection(features, targets).names
    if indicator and fraction:
        raise ConfigError("validationFraction and validationIndicatorCol exclude each other.")
    if indicator:
        is_validation = F.coalesce(_column(dataset, indicator), F.lit(False))
        train, validation = dataset.filter(~is_validation), dataset.filter(is_validation)
    elif fraction:
        train, validation = dataset.randomSplit([1 - fraction, fraction], params.getSeed())
    else:
        return {"train": _select(dataset, used)}
    return {"train": _select(train, used), "validation": _select(validation, used)}


def _select(df: DataFrame, names: list[str]) -> DataFrame:
    return df.select([_column(df, name) for name in names])


def _column(df: DataFrame, name: str) -> F.Column:
    # With backticks, because a name may contain dots.
    return df[f"`{name}`"]
