"""Runs in a Spark task. Apply a model to the Arrow batches of a DataFrame."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.inference.features import FeatureColumns, FeatureConversion, Features
from sparkdl.inference.model_cache import cached_model
from sparkdl.inference.model_file import StoredModel
from sparkdl.inference.ragged_rows import concatenate
from sparkdl.inference.tensor_spec import TensorSpec, arrow_type, to_arrow
from sparkdl.inference.traced_model import TracedModel

Array = Any  # np.ndarray, whose first axis counts the rows.


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
        max_tokens: largest number of tokens per call of the model; see `Features.slices`.
        null_for_errors: give rows that the model cannot take null as outputs, not an error.
        detect_gpus: see `model_cache.cached_model`.
    """

    model: StoredModel
    features: FeatureColumns
    outputs: tuple[TensorSpec, ...]
    names: tuple[str, ...]
    batch_size: int
    max_tokens: int | None
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
                outputs = self._compute(predict, *conversion(batch).sorted_by_length())
            own_columns = batch.columns[: len(self.names) - len(outputs)]
            yield pa.RecordBatch.from_arrays([*own_columns, *outputs], list(self.names))

    def _compute_possible(self, predict: TracedModel, batch: pa.RecordBatch) -> list[pa.Array]:
        """Compute the outputs; rows that the model cannot take get null."""
        rows = batch.num_rows
        try:
            features, order = FeatureConversion(self.features)(batch).sorted_by_length()
        except predict.row_errors:
            if rows == 1:
                return self._nulls(1)
        else:
            return self._compute(predict, features, order)
        # The rows at fault are found by halving. Each half may have arrays of another length.
        halves = batch.slice(0, rows // 2), batch.slice(rows // 2)
        parts = [self._compute_possible(predict, half) for half in halves]
        return [pa.concat_arrays(pair) for pair in zip(*parts, strict=True)]

    def _nulls(self, rows: int) -> list[pa.Array]:
        return [pa.nulls(rows, arrow_type(output)) for output in self.outputs]

    def _compute(
        self, predict: TracedModel, features: Features, order: Array | None
    ) -> list[pa.Array]:
        """Compute the outputs, in the order of the batch.

        Args:
            predict: the model.
            features: the features of the batch, sorted.
            order: the row of the batch for each row of the features; None if it is the same.
        """
        total = len(features)
        max_rows = predict.num_rows or self.batch_size
        max_tokens = None if predict.num_rows else self.max_tokens
        computed: list[Array] = []
        parts = []
        for rows in features.slices(max_rows, max_tokens):
            for done, part in self._call(predict, features, rows):
                computed.append(np.arange(done.start, done.stop))
                parts.append(part)
        if not parts:
            return self._nulls(total)
        columns = [concatenate(column) for column in zip(*parts, strict=True)]
        arrays = [to_arrow(*pair) for pair in zip(columns, self.outputs, strict=True)]
        found = np.concatenate(computed)
        if order is None and len(found) == total:
            return arrays
        places = np.full(total, -1)
        places[found if order is None else order[found]] = np.arange(len(found))
        taken = pa.array(places, mask=places < 0)
        return [array.take(taken) for array in arrays]

    def _call(
        self, predict: TracedModel, features: Features, rows: slice
    ) -> Iterator[tuple[slice, list[Any]]]:
        """Yield the outputs of rows, with `null_for_errors` of those that the model can take.

        Only the rows of a failed call are computed again, in halves.
        """
        try:
            outputs = predict(features[rows])
            if self.model.outputs:
                # Declared outputs have no shape that tells a value for each place from a vector.
                part = [outputs[o.name] for o in self.outputs]
            else:
                part = [features.without_padding(outputs[o.name], o, rows) for o in self.outputs]
        except predict.row_errors:
            if not self.null_for_errors:
                raise
            middle = (rows.start + rows.stop) // 2
            if middle > rows.start:
                yield from self._call(predict, features, slice(rows.start, middle))
                yield from self._call(predict, features, slice(middle, rows.stop))
            return
        yield rows, part
