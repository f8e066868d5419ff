"""Runs on the driver and in a Spark task. A Keras model for images as a function of Spark SQL."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sparkdl.databricks.image_columns import ImageModel, outputs_of, prepared
from sparkdl.databricks.image_io import imageStructToArray, imageStructToPIL
from sparkdl.databricks.image_sources import as_rgb
from sparkdl.databricks.keras_stages import model_of
from sparkdl.files.model_formats import library_of_object
from sparkdl.spark.python import use_driver_python

__all__ = ["registerKerasImageUDF"]

# The images that the model gets at once.
_ROWS = 32


def registerKerasImageUDF(
    udf_name: str, keras_model_or_file_path: Any, preprocessor: Callable[[str], Any] | None = None
) -> Any:
    """Register a Keras model as a function of Spark SQL that takes a column of image structs.

    The function returns an array of numbers for each image. The images must have the size of the
    model, or `preprocessor` must make it; an image that is null gets null.

    Args:
        udf_name: the name in SQL; a function of this name is replaced.
        keras_model_or_file_path: a Keras model with one input and one output, or its path or URL.
        preprocessor: a function from the path of a file to an array of shape (height, width,
            channels). Each image is written as a PNG file for it.

    Returns:
        The function, for the API of DataFrames.

    Raises:
        ConfigError: if the model cannot be used.
    """
    model = keras_model_or_file_path
    if not library_of_object(model):
        model = model_of(model)
    spark = SparkSession.builder.getOrCreate()
    use_driver_python(spark)
    function = _ImageFunction(prepared(model, spark), preprocessor)

    def compute(images: pd.DataFrame) -> pd.Series:
        return function(images)

    return spark.udf.register(udf_name, F.pandas_udf(compute, "array<float>"))


@dataclass(frozen=True)
class _ImageFunction:
    model: ImageModel
    preprocess: Callable[[str], Any] | None

    def __call__(self, images: pd.DataFrame) -> pd.Series:
        pixels: list[Any] = []
        for begin in range(0, len(images), _ROWS):
            rows = images.iloc[begin : begin + _ROWS].itertuples(index=False)
            found = outputs_of([self._pixels(row) for row in rows], self.model)
            pixels += found.to_pylist()
        return pd.Series(pixels, dtype=object)

    def _pixels(self, image: Any) -> Any:
        if image.data is None:
            return None
        if self.preprocess is None:
            pixels = imageStructToArray(image)
            return pixels if (self.model.input.shape or ())[-1:] == (1,) else as_rgb(pixels)
        with tempfile.NamedTemporaryFile(suffix=".png") as file:
            imageStructToPIL(image).save(file.name)
            return np.asarray(self.preprocess(file.name), np.float32)
