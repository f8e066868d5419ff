"""Runs on the driver. A trained Keras model as a transformer of Spark ML."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from sparkdl.errors import ConfigError, named_type
from sparkdl.files.model_formats import library_of_object
from sparkdl.inference.prediction import predict
from sparkdl.inference.resolve import leave_gpus_to_tasks
from sparkdl.ml.stage_files import read_model, write_model
from sparkdl.ml.stages import OUTPUT, PredictingStage


class KerasModel(PredictingStage):
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

    def __init__(self, keras_model: Any, **params: Any) -> None:
        super().__init__()
        if library_of_object(keras_model) != "keras":
            raise ConfigError(
                f"keras_model is {named_type(keras_model)}; expected a model of Keras 3."
            )
        self.keras_model = keras_model
        self.setParams(**params)

    def _with_output(self, dataset: DataFrame) -> DataFrame:
        return predict(
            self.keras_model,
            dataset,
            feature_cols=self.getFeaturesCol(),
            prediction_col=[OUTPUT],
            batch_size=self.getPredictBatchSize(),
        )

    def _save(self, path: str, spark: Any) -> Mapping[str, Any]:
        write_model(self.keras_model, path, spark)
        return {}

    @classmethod
    def _load(cls, extra: Mapping[str, Any], path: str, spark: Any) -> "KerasModel":
        leave_gpus_to_tasks()
        return cls(read_model(path, spark, is_compiled=False))
