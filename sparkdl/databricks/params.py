"""Runs on the driver. The params that the stages of Deep Learning Pipelines share."""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.ml.functions import array_to_vector
from pyspark.ml.param import Params, TypeConverters
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.errors import ConfigError
from sparkdl.spark.ml import accessors, param

# The arguments of `fit` of Keras that training in a process of Spark knows, and their params.
FIT_PARAMS = {
    "batch_size": "batchSize",
    "epochs": "epochs",
    "shuffle": "shuffle",
    "validation_split": "validationFraction",
}
_WITHOUT_EFFECT = "verbose"


def _fit_params(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"kerasFitParams is {value!r}; expected a dict.")
    if others := sorted(value.keys() - {*FIT_PARAMS, _WITHOUT_EFFECT}):
        raise ConfigError(
            f"kerasFitParams has {', '.join(map(repr, others))}; expected some of "
            f"{', '.join(map(repr, FIT_PARAMS))}. sparkdl.ml.KerasEstimator takes callbacks."
        )
    return dict(value)


def one_of(name: str, *values: str) -> Callable[[Any], str]:
    """Return a converter that takes one of some values, for a param.

    Example:
        >>> one_of("outputMode", "vector")("vector")
        'vector'
    """

    def convert(value: Any) -> str:
        if value not in values:
            raise ConfigError(f"{name} is {value!r}; expected {' or '.join(map(repr, values))}.")
        return str(value)

    return convert


class ColumnParams(Params):  # type: ignore[misc]
    """The column that a stage reads, and the one that it adds."""

    inputCol = param("inputCol", "name of the column to read", TypeConverters.toString)
    setInputCol, getInputCol = accessors("inputCol")
    outputCol = param("outputCol", "name of the new column", TypeConverters.toString)
    setOutputCol, getOutputCol = accessors("outputCol")

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(outputCol=f"{self.uid}__output")

    def setParams(self, **params: Any) -> Any:
        """Set params by name and return the stage. None leaves a param as it is."""
        for name in params:
            if not self.hasParam(name):
                names = ", ".join(each.name for each in self.params)
                raise ConfigError(f"there is no param {name!r}; expected one of {names}.")
        return self._set(**{name: value for name, value in params.items() if value is not None})


class ModelFileParams(Params):  # type: ignore[misc]
    """The file of a Keras model, and how it is or was trained."""

    modelFile = param(
        "modelFile", "path or URL of the Keras model, for the driver", TypeConverters.toString
    )
    setModelFile, getModelFile = accessors("modelFile")
    kerasFitParams = param("kerasFitParams", "arguments of fit of Keras", _fit_params)
    setKerasFitParams, getKerasFitParams = accessors("kerasFitParams")

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(kerasFitParams={})


class ImageLoaderParams(Params):  # type: ignore[misc]
    """The function that reads an image."""

    imageLoader = param(
        "imageLoader",
        "function from a path or URL to an array of shape (1, height, width, channels)",
        lambda value: value,
    )
    setImageLoader, getImageLoader = accessors("imageLoader")
    outputMode = param("outputMode", "form of the output: vector", one_of("outputMode", "vector"))
    setOutputMode, getOutputMode = accessors("outputMode")

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(outputMode="vector")


def with_vectors(df: DataFrame, column: str) -> DataFrame:
    """Return a DataFrame with the arrays of a column as vectors of Spark ML; nulls stay."""
    arrays = df[f"`{column}`"].cast("array<double>")
    return df.withColumn(column, F.when(arrays.isNotNull(), array_to_vector(arrays)))
