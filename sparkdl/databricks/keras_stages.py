"""Runs on the driver. Deep Learning Pipelines' transformers for a file of a Keras model."""

from collections.abc import Callable
from typing import Any

from pyspark.ml import Transformer
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl.databricks.image_columns import with_outputs
from sparkdl.databricks.image_sources import LoadedFiles
from sparkdl.databricks.params import (
    ColumnParams,
    ImageLoaderParams,
    ModelFileParams,
    with_vectors,
)
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.model_formats import library_of, load_keras
from sparkdl.inference.model_file import local_copy
from sparkdl.inference.prediction import predict
from sparkdl.inference.resolve import leave_gpus_to_tasks


class KerasTransformer(
    DefaultParamsReadable,  # type: ignore[misc]
    DefaultParamsWritable,  # type: ignore[misc]
    Transformer,  # type: ignore[misc]
    ColumnParams,
    ModelFileParams,
):
    """Adds the output of a Keras model with one input and one output, as a column of arrays.

    `experiment.predict` takes more: several inputs and outputs, SavedModels, PyTorch, functions.

    Args:
        inputCol: name of the column of arrays, or of numbers.
        outputCol: name of the new column.
        modelFile: path or URL of the model, which only the driver reads.

    Example:
        >>> import keras
        >>> from pyspark.sql import SparkSession
        >>> total = keras.layers.Dense(1, kernel_initializer="ones")
        >>> keras.Sequential([keras.layers.Input((2,)), total]).save("total.keras")
        >>> df = SparkSession.active().createDataFrame([([1.0, 2.0],)], "x array<float>")
        >>> stage = KerasTransformer(inputCol="x", outputCol="y", modelFile="total.keras")
        >>> stage.transform(df).first()
        Row(x=[1.0, 2.0], y=[3.0])
    """

    def __init__(
        self,
        *,
        inputCol: str | None = None,
        outputCol: str | None = None,
        modelFile: str | None = None,
    ) -> None:
        super().__init__()
        self.setParams(inputCol=inputCol, outputCol=outputCol, modelFile=modelFile)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        name = self.getOutputCol()
        df = predict(
            model_of(self.getModelFile()),
            dataset,
            feature_cols=self.getInputCol(),
            prediction_col=[name],
        )
        is_array = df.schema[name].dataType.typeName() == "array"
        return df if is_array else df.withColumn(name, F.array(df[f"`{name}`"]))


class KerasImageFileTransformer(Transformer, ColumnParams, ModelFileParams, ImageLoaderParams):  # type: ignore[misc]
    """Reads the images of a column of paths, and adds the output of a Keras model for each.

    An image that the function cannot read, because of an `OSError` or a `ValueError`, gets null.

    Args:
        inputCol: name of the column of paths or URLs.
        outputCol: name of the new column, which has vectors.
        modelFile: path or URL of the model, which only the driver reads.
        imageLoader: the function that reads an image, as an array of shape (1, height, width,
            channels), ready for the model.
        outputMode: `vector`.
    """

    def __init__(
        self,
        *,
        inputCol: str | None = None,
        outputCol: str | None = None,
        modelFile: str | None = None,
        imageLoader: Callable[[str], Any] | None = None,
        outputMode: str = "vector",
    ) -> None:
        super().__init__()
        self.setParams(
            inputCol=inputCol,
            outputCol=outputCol,
            modelFile=modelFile,
            imageLoader=imageLoader,
            outputMode=outputMode,
        )

    def _transform(self, dataset: DataFrame) -> DataFrame:
        source = LoadedFiles(self.getImageLoader())
        model = model_of(self.getModelFile())
        name = self.getOutputCol()
        return with_vectors(with_outputs(dataset, self.getInputCol(), name, source, model), name)


def model_of(path: str) -> Any:
    """Return the Keras model of a path or URL, without its loss and its optimizer.

    Raises:
        ConfigError: if there is no Keras model.
    """
    leave_gpus_to_tasks()
    try:
        with local_copy(storage.absolute(path)) as local:
            return load_keras(local, library_of(local))
    except (OSError, ValueError, KeyError) as exc:
        raise ConfigError(f"modelFile {path}: {exc}") from exc
