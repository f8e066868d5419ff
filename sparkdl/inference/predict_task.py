"""Runs in a Spark task. The module-level class that Spark runs over a DataFrame's Arrow batches."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sparkdl.data.arrow_arrays import Arrays
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.schema import Column
from sparkdl.inference.model_cache import Model, model
from sparkdl.inference.model_file import Stored
from sparkdl.inference.tensor_spec import Tensor, to_arrow

__all__ = ["PredictTask"]


@dataclass(frozen=True)
class PredictTask:
    """Adds what a model computes to Arrow batches. Rows and their order stay.

    Attributes:
        stored: the model.
        inputs, outputs: what goes into it and comes out.
        columns: how each feature column becomes an array.
        places: where they are in a batch.
        wanted: how they become inputs: a tuple of these.
        names: of the person's columns, with which a batch begins, and of those that are added, one
            an output. Others that a batch has are left out.
        batch_size: how many rows the model gets at once.
        detect_gpus: see `worker.model`.
    """

    stored: Stored
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    columns: tuple[Column, ...]
    places: tuple[int, ...]
    wanted: ColumnSelection
    names: tuple[str, ...]
    batch_size: int
    detect_gpus: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a batch for each that has rows."""
        arrays = Arrays(self.columns, self.wanted)
        for batch in batches:
            if not batch.num_rows:
                continue
            predict = model(self.stored, self.inputs, self.detect_gpus)
            added = self._outputs(predict, arrays, batch)
            kept = batch.columns[: len(self.names) - len(added)]
            yield pa.RecordBatch.from_arrays([*kept, *added], list(self.names))

    def _outputs(self, predict: Model, arrays: Arrays, batch: pa.RecordBatch) -> list[pa.Array]:
        chosen = pa.RecordBatch.from_arrays(
            [batch.column(place) for place in self.places], [c.name for c in self.columns]
        )
        features, size = arrays(chosen), self.batch_size
        parts = [
            predict([feature[begin : begin + size] for feature in features])
            for begin in range(0, batch.num_rows, size)
        ]
        return [
            to_arrow(np.concatenate([part[output.name] for part in parts]), output)
            for output in self.outputs
        ]
