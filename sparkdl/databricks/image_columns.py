"""Runs on the driver and in a Spark task. Add the outputs of a Keras model for images to rows.

`experiment.predict` takes columns of arrays. A column of decoded images would hold a megabyte for
each row, and Spark passes ten thousand rows at once: here a few images at a time are decoded, and
passed to the model.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from sparkdl import config
from sparkdl.errors import ConfigError
from sparkdl.inference.model_cache import cached_model
from sparkdl.inference.model_file import StoredModel
from sparkdl.inference.prediction import check_new_columns
from sparkdl.inference.resolve import resolve_model
from sparkdl.inference.tensor_spec import TensorSpec
from sparkdl.spark.python import map_in_arrow

# The images that are in memory at once.
_ROWS = 32

Source = Callable[[pa.Array], list[Any]]


def with_outputs(
    df: DataFrame, column: str, name: str, source: Source, model: Any = None
) -> DataFrame:
    """Add a column of arrays: the output of a model for each image, or the images themselves.

    Args:
        df: the rows.
        column: the column that `source` takes.
        name: name of the new column. It has null where `source` returns None.
        source: returns an array for each value of the column; pickled with the task.
        model: a Keras model with one input and one output; None for the images.

    Raises:
        ConfigError: if the column does not exist, or the model cannot be used.
    """
    if column not in df.columns:
        raise ConfigError(f"the column {column!r} does not exist; there are {df.columns}.")
    check_new_columns([name], df.columns)
    in_task = None if model is None else prepared(model, df.sparkSession)
    schema = StructType([*df.schema.fields, StructField(name, ArrayType(FloatType()))])
    # Numbered columns, because mapInArrow does not find a column with a dot in its name.
    frame = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    task = ImageTask(source, df.columns.index(column), tuple(schema.names), in_task)
    return map_in_arrow(frame, task, schema)


@dataclass(frozen=True)
class ImageModel:
    """A model with one input and one output, in a task.

    Attributes:
        stored: the model.
        input: its input.
        output: the name of its output.
        detect_gpus: see `model_cache.cached_model`.
    """

    stored: StoredModel
    input: TensorSpec
    output: str
    detect_gpus: bool

    def __call__(self, images: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        """Return the output for each image, flattened."""
        _, *shape = images.shape
        spec = replace(self.input, shape=tuple(self.input.shape or shape))
        predict = cached_model(self.stored, (spec,), self.detect_gpus)
        return np.asarray(predict([images])[self.output]).reshape(len(images), -1)


def prepared(model: Any, spark: SparkSession) -> ImageModel:
    """Return a Keras model with one input and one output for tasks of a session.

    Raises:
        ConfigError: if the model cannot be used.
    """
    stored_model, loaded_model = resolve_model(model, "serving_default")
    outputs = loaded_model.trace(loaded_model.inputs).outputs
    if len(loaded_model.inputs) != 1 or len(outputs) != 1:
        raise ConfigError(
            f"the model {stored_model.name} has {len(loaded_model.inputs)} inputs and "
            f"{len(outputs)} outputs; expected one of each. experiment.predict takes several."
        )
    detect_gpus = config.resolve("detect_gpus", None, lambda key: spark.conf.get(key, None))
    return ImageModel(stored_model, loaded_model.inputs[0], outputs[0].name, detect_gpus)


@dataclass(frozen=True)
class ImageTask:
    """The task that adds a column of arrays to the batches of a partition, a few rows at a time."""

    source: Source
    position: int
    names: tuple[str, ...]
    model: ImageModel | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, in slices, with the new column."""
        for batch in batches:
            for begin in range(0, batch.num_rows, _ROWS):
                rows = batch.slice(begin, _ROWS)
                values = outputs_of(self.source(rows.column(self.position)), self.model)
                yield pa.RecordBatch.from_arrays([*rows.columns, values], list(self.names))


def outputs_of(images: list[Any], model: ImageModel | None) -> pa.Array:
    """Return the flat output of a model for each image, or the flat image; null for None."""
    present = [image for image in images if image is not None]
    if not present:
        return pa.nulls(len(images), pa.list_(pa.float32()))
    rows = [image.reshape(-1) for image in present] if model is None else model(np.stack(present))
    next_rows = iter(rows)
    return pa.array(
        [None if image is None else next(next_rows) for image in images], pa.list_(pa.float32())
    )
