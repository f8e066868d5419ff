"""Runs on the driver. A trained Keras model with the interface of Horovod's."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from sparkdl import ml
from sparkdl.errors import ConfigError
from sparkdl.horovod.spark.stages import SparkModel
from sparkdl.ml.stage_files import read_model, write_model

__all__ = ["KerasModel", "features_of"]


def features_of(model: Any, columns: Sequence[str]) -> Any:
    """Return the feature columns as `sparkdl.ml` takes them: one column for each input.

    Args:
        model: the Keras model.
        columns: the columns, in the order of the inputs of the model.

    Raises:
        ConfigError: if there are more or fewer columns than inputs.
    """
    inputs = [each.name for each in model.inputs]
    if len(columns) != len(inputs):
        raise ConfigError(
            f"feature_cols is {list(columns)!r} for a model with {len(inputs)} inputs; expected "
            "a column for each input. pyspark.ml.feature.VectorAssembler makes one of several."
        )
    return columns[0] if len(inputs) == 1 else dict(zip(inputs, columns, strict=True))


class KerasModel(SparkModel):
    """A Keras model that adds a column of predictions to a DataFrame.

    The column has the name of the label with `__output` behind it, unless `setOutputCols` names
    another: a vector of the outputs, or a number of the type of the label.

    Args:
        model: the Keras model.
        history: the metrics of each epoch, by name.
        feature_columns: the columns of the features, one for each input of the model.
        label_columns: the column of the label.
        custom_objects: own classes and functions of the model, by name. They are not saved:
            register them with Keras to load the model again.
        run_id: the id of the run that trained the model.
        label_type: the type of the column of the label.

    Example:
        >>> import keras
        >>> from pyspark.sql import SparkSession
        >>> total = keras.layers.Dense(1, kernel_initializer="ones")
        >>> net = keras.Sequential([keras.layers.Input((2,)), total])
        >>> model = KerasModel(model=net, feature_columns=["x"], label_columns=["y"])
        >>> df = SparkSession.active().createDataFrame([([1.0, 2.0],)], "x array<float>")
        >>> model.setOutputCols(["sum"]).transform(df).first()
        Row(x=[1.0, 2.0], sum=3.0)
    """

    def __init__(
        self,
        history: Mapping[str, Any] | None = None,
        model: Any = None,
        feature_columns: Sequence[str] | None = None,
        label_columns: Sequence[str] | None = None,
        custom_objects: Any = None,
        run_id: str | None = None,
        label_type: str = "double",
    ) -> None:
        super().__init__(
            model,
            label_columns,
            history=history,
            feature_columns=feature_columns,
            run_id=run_id,
            label_type=label_type,
        )
        self._custom_objects = dict(custom_objects or {})

    def _transform(self, dataset: DataFrame) -> DataFrame:
        import keras

        with keras.saving.custom_object_scope(self._custom_objects):
            return super()._transform(dataset)

    def _stage(self, column: str) -> ml.KerasModel:
        features = features_of(self._model, self.getFeatureColumns())
        return ml.KerasModel(
            self._model, featuresCol=features, predictionCol=column, task="regression"
        )

    def _save(self, path: str, spark: Any) -> Mapping[str, Any]:
        write_model(self._model, path, spark)
        return {}

    @classmethod
    def _load(cls, extra: Mapping[str, Any], path: str, spark: Any) -> "KerasModel":
        return cls(model=read_model(path, spark, is_compiled=False))
