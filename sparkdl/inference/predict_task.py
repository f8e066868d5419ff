"""Runs in a Spark task. Apply a model to the Arrow batches of a DataFrame."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from sparkdl.inference.features import FeatureColumns, FeatureConversion
from sparkdl.inference.model_cache import cached_model
from sparkdl.inference.model_file import StoredModel
from sparkdl.inference.ragged_rows import concatenate
from sparkdl.inference.tensor_spec import TensorSpec, arrow_type, to_arrow
from sparkdl.inference.traced_model import TracedModel

__all__ = ["PredictTask"]


@dataclass(frozen=True, kw_only=True)
class PredictTask:
    """The task that adds the outputs of a model to Arrow batches; rows keep their order.

    The class is at module level so that Spark can pickle an instance by reference.

    Attributes:
        model: the model.
        features: the feature columns of each input.
        outputs: the outputs to add.
        names: names of the columns in the result: the first columns of a batch, then one for each
            output. Further columns of a batch are left out.
        batch_size: largest number of rows per call of the model.
        null_for_errors: give rows that the model cannot take null as outputs, not an error.
        detect_gpus: see `model_cache.cached_model`.
    """

    model: StoredModel
    features: FeatureColumns
    outputs: tuple[TensorSpec, ...]
    names: tuple[str, ...]
    batch_size: int
    null_for_errors: bool
    detect_gpus: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a batch of results for each batch that has rows."""
        conversion = FeatureConversion(self.features)
        for batch in batches:
            if not batch.num_rows:
                continue
            predict = cached_model(self.model, self.features.inputs, self.detect_gpus)
            if self.null_for_errors:
                outputs = self._compute_possible(predict, batch)
            else:
                outputs = self._compute(predict, conversion, batch)
            own_columns = batch.columns[: len(self.names) - len(outputs)]
            yield pa.RecordBatch.from_arrays([*own_columns, *outputs], list(self.names))

    def _compute_possible(self, predict: TracedModel, batch: pa.RecordBatch) -> list[pa.Array]:
        """Compute the outputs; rows that the model cannot take get null."""
        try:
            return self._compute(predict, FeatureConversion(self.features), batch)
        except predict.row_errors:
            rows = batch.num_rows
            if rows == 1:
                return [pa.nulls(1, arrow_type(output)) for output in self.outputs]
        # The rows at fault are found by halving. Each half may have arrays of another length.
        halves = batch.slice(0, rows // 2), batch.slice(rows // 2)
        parts = [self._compute_possible(predict, half) for half in halves]
        return [pa.concat_arrays(pair) for pair in zip(*parts, strict=True)]

    def _compute(
        self, predict: TracedModel, conversion: FeatureConversion, batch: pa.RecordBatch
    ) -> list[pa.Array]:
        features, places = conversion(batch).sorted_by_length()
        size = predict.num_rows or self.batch_size
        parts = []
        for begin in range(0, batch.num_rows, size):
            rows = slice(begin, begin + size)
            found = predict(features[rows])
            if self.model.outputs:
                # Declared outputs have no shape that tells a value for each place from a vector.
                parts.append([found[o.name] for o in self.outputs])
                continue
            parts.append([features.without_padding(found[o.name], o, rows) for o in self.outputs])
        joined = [concatenate(column) for column in zip(*parts, strict=True)]
        arrays = [to_arrow(*pair) for pair in zip(joined, self.outputs, strict=True)]
        return arrays if places is None else [array.take(places) for array in arrays]
