"""Runs on the driver. A trained Keras model as a transformer of Spark ML."""

from collections.abc import Mapping
from typing import Any

from pyspark.ml import Model
from pyspark.ml.param import TypeConverters
from pyspark.sql import DataFrame

from sparkdl.errors import ConfigError
from sparkdl.inference.prediction import check_new_columns, predict
from sparkdl.inference.resolve import leave_gpus_to_tasks
from sparkdl.ml.keras_files import read_model, write_model
from sparkdl.ml.params import CLASSIFICATION, REGRESSION, PredictionParams
from sparkdl.ml.prediction_columns import classification_columns, regression_column
from sparkdl.model_formats import library_of_object
from sparkdl.spark_ml import PersistentStage, accessors, param

__all__ = ["KerasModel"]

# The column of the model's outputs, which transform replaces.
_OUTPUT = "sparkdl_output"


class KerasModel(
    PersistentStage,
    Model,  # type: ignore[misc]
    PredictionParams,
):
    """A Keras model that adds columns of predictions to a DataFrame.

    `transform` keeps all rows and columns. A regression gets the column `prediction`; a
    classification also has `probability` and `rawPrediction`, which are vectors, for Spark's
    evaluators. The model must have one output with a number or an array of numbers for each row.

    Args:
        keras_model: a Keras model.
        **params: params by name. `task` is required, because the model need not be compiled.

    Attributes:
        keras_model: the Keras model, without its loss and its optimizer after `fit` and `load`.

    Raises:
        ConfigError: if the model is none of Keras 3, or a param is invalid.

    Example:
        >>> import keras
        >>> from pyspark.sql import SparkSession
        >>> total = keras.layers.Dense(1, kernel_initializer="ones")
        >>> net = keras.Sequential([keras.layers.Input((2,)), total])
        >>> model = KerasModel(net, featuresCol=["a", "b"], task="regression")
        >>> df = SparkSession.active().createDataFrame([(1.0, 2.0)], "a float, b float")
        >>> model.transform(df).first()
        Row(a=1.0, b=2.0, prediction=3.0)
    """

    runPath = param("runPath", "path of the run that trained the model", TypeConverters.toString)
    setRunPath, getRunPath = accessors("runPath")

    def __init__(self, keras_model: Any, **params: Any) -> None:
        super().__init__()
        if library_of_object(keras_model) != "keras":
            raise ConfigError(
                f"keras_model is a {type(keras_model).__name__}; expected a model of Keras 3."
            )
        self.keras_model = keras_model
        self._setDefault(fromLogits=False, runPath=None)
        self.setParams(**params)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        names = self._new_columns()
        check_new_columns([name for name in names if name], dataset.columns)
        df = predict(
            self.keras_model,
            dataset,
            feature_cols=self.getFeaturesCol(),
            prediction_col=[_OUTPUT],
            batch_size=self.getPredictBatchSize(),
        )
        is_array = df.schema[_OUTPUT].dataType.typeName() == "array"
        made: tuple[Any, ...] = (regression_column(df[_OUTPUT], is_array),)
        if self.getTask() == CLASSIFICATION:
            made = classification_columns(df, _OUTPUT, is_array, self.getFromLogits())
        columns = dict(zip(names, made, strict=True))
        return df.withColumns({n: c for n, c in columns.items() if n}).drop(_OUTPUT)

    def _new_columns(self) -> list[str]:
        if not (self.isDefined("task") and self.getTask()):
            raise ConfigError(
                f"the param task is not set; set it to {CLASSIFICATION!r} or {REGRESSION!r}."
            )
        if self.getTask() == REGRESSION:
            return [self.getPredictionCol()]
        return [self.getRawPredictionCol(), self.getProbabilityCol(), self.getPredictionCol()]

    def _save(self, path: str, spark: Any) -> Mapping[str, Any]:
        write_model(self.keras_model, path, spark)
        return {}

    @classmethod
    def _load(cls, extra: Mapping[str, Any], path: str, spark: Any) -> "KerasModel":
        leave_gpus_to_tasks()
        return cls(read_model(path, spark, is_compiled=False))
