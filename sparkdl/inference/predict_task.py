"""Runs in a Spark task. Apply a model to the Arrow batches of a DataFrame."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sparkdl.data.arrow_arrays import Arrays
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.schema import Column
from sparkdl.inference.model_cache import Model, cached_model
from sparkdl.inference.model_file import StoredModel
from sparkdl.inference.tensor_spec import TensorSpec, arrow_type, to_arrow

__all__ = ["PredictTask"]


@dataclass(frozen=True, kw_only=True)
class PredictTask:
    """The task that adds the outputs of a model to Arrow batches; rows keep their order.

    The class is at module level so that Spark can pickle an instance by reference.

    Attributes:
        model: the model.
        inputs, outputs: the inputs of the model, and the outputs to add.
        columns: the conversion of each feature column to an array.
        positions: the position of each feature column in a batch.
        selection: the feature columns: a tuple with the columns of each input.
        names: names of the columns in the result: the first columns of a batch, then one for each
            output. Further columns of a batch are left out.
        batch_size: largest number of rows per call of the model.
        null_for_errors: give rows that the model cannot take null as outputs, not an error.
        detect_gpus: see `model_cache.cached_model`.
    """

    model: StoredModel
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    columns: tuple[Column, ...]
    positions: tuple[int, ...]
    selection: ColumnSelection
    names: tuple[str, ...]
    batch_size: int
    null_for_errors: bool
    detect_gpus: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a batch of results for each batch that has rows."""
        arrays = Arrays(self.columns, self.selection)
        for batch in batches:
            if not batch.num_rows:
                continue
            predict = cached_model(self.model, self.inputs, self.detect_gpus)
            if self.null_for_errors:
                outputs = self._compute_possible(predict, batch)
            else:
                outputs = self._compute(predict, arrays, batch)
            own_columns = batch.columns[: len(self.names) - len(outputs)]
            yield pa.RecordBatch.from_arrays([*own_columns, *outputs], list(self.names))

    def _compute_possible(self, predict: Model, batch: pa.RecordBatch) -> list[pa.Array]:
        """Compute the outputs; rows that the model cannot take get null."""
        import tensorflow as tf  # The model has loaded TensorFlow.

        try:
            return self._compute(predict, Arrays(self.columns, self.selection), batch)
        except (ValueError, tf.errors.InvalidArgumentError):
            rows = batch.num_rows
            if rows == 1:
                return [pa.nulls(1, arrow_type(output)) for output in self.outputs]
        # The rows at fault are found by halving. Each half may have arrays of another length.
        halves = batch.slice(0, rows // 2), batch.slice(rows // 2)
        parts = [self._compute_possible(predict, half) for half in halves]
        return [pa.concat_arrays(pair) for pair in zip(*parts, strict=True)]

    def _compute(self, predict: Model, arrays: Arrays, batch: pa.RecordBatch) -> list[pa.Array]:
        feature_batch = pa.RecordBatch.from_arrays(
            [batch.column(position) for position in self.positions],
            [column.name for column in self.columns],
        )
        features = arrays(feature_batch)
        parts = [
            predict([feature[begin : begin + self.batch_size] for feature in features])
            for begin in range(0, batch.num_rows, self.batch_size)
        ]
        return [
            to_arrow(np.concatenate([part[output.name] for part in parts]), output)
            for output in self.outputs
        ]
