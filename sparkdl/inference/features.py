"""Runs in a Spark task. Convert Arrow batches to the arrays that a model takes."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data.arrow_arrays import Arrays
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.schema import Column
from sparkdl.inference.ragged_rows import RaggedRows, from_arrow, outer_lengths, padded_width
from sparkdl.inference.tensor_spec import TensorSpec

__all__ = ["FeatureColumns", "FeatureConversion"]

Array = Any  # np.ndarray, whose first axis counts the rows.


@dataclass(frozen=True, kw_only=True)
class FeatureColumns:
    """The columns of a batch that are the inputs of a model.

    Attributes:
        columns: the conversion of each feature column to an array.
        positions: the position of each feature column in a batch.
        selection: the feature columns: a tuple with the columns of each input.
        inputs: the inputs of the model.
        pads: for each input that takes arrays of different lengths, the value that fills shorter
            ones up; None for all others.
    """

    columns: tuple[Column, ...]
    positions: tuple[int, ...]
    selection: ColumnSelection
    inputs: tuple[TensorSpec, ...]
    pads: tuple[Any, ...]


class FeatureConversion:
    """Convert batches to features; columns that are not padded have equal lengths in all batches.

    Args:
        chosen: the columns.
    """

    def __init__(self, chosen: FeatureColumns) -> None:
        self._chosen = chosen
        self._positions = {
            column.name: position
            for column, position in zip(chosen.columns, chosen.positions, strict=True)
        }
        self._by_name = {column.name: column for column in chosen.columns}
        choices = zip(chosen.selection.features, chosen.pads, strict=True)
        dense = ColumnSelection(tuple(choice for choice, pad in choices if pad is None))
        self._dense_names = dense.names if dense.features else []
        self._arrays = Arrays([self._by_name[name] for name in self._dense_names], dense)

    def __call__(self, batch: pa.RecordBatch) -> "Features":
        """Return the features of a batch.

        Raises:
            ValueError: if there is a null, or an array of another length than the first.
        """
        columns = [batch.column(self._positions[name]) for name in self._dense_names]
        dense: list[Array] = []
        if columns:
            dense = list(self._arrays(pa.RecordBatch.from_arrays(columns, self._dense_names)))
        inputs: list[Any] = []
        chosen = self._chosen
        for choice, spec, pad in zip(
            chosen.selection.features, chosen.inputs, chosen.pads, strict=True
        ):
            if pad is None:
                inputs.append(dense.pop(0))
            else:
                values = batch.column(self._positions[choice])
                inputs.append(VariableColumn(values, self._by_name[choice], spec, pad))
        return Features(tuple(inputs))


@dataclass(frozen=True)
class VariableColumn:
    """A column of arrays of different lengths, which is one input of a model.

    The rows of a slice are padded to the longest of them, unless the model takes ragged rows.

    Attributes:
        values: the column's values.
        column: how the column becomes an array.
        spec: the input.
        pad: the value that fills shorter arrays up.
    """

    values: pa.Array
    column: Column
    spec: TensorSpec
    pad: Any

    def __getitem__(self, rows: slice) -> Any:
        values, shape = self.values[rows], self.spec.shape or ()
        if self.spec.ragged:
            return from_arrow(values, self.column, shape, self.spec.num_variable_axes)
        return from_arrow(values, self.column, shape, self.column.depth).padded(self.pad, shape)

    def is_padded_inside(self, rows: slice) -> bool:
        """Return True if arrays within the arrays of these rows are filled up."""
        values = self.values[rows]
        for size in (self.spec.shape or ())[1 : self.column.depth]:
            values = values.flatten()
            lengths = outer_lengths(values, self.column)
            if size is None and (lengths != padded_width(lengths)).any():
                return True
        return False

    @cached_property
    def lengths(self) -> Array:
        """The length of each row along the first axis of the input."""
        shape = self.spec.shape or ()
        inner = prod(n for n in shape[1:] if n) if len(shape) > self.column.depth else 1
        return outer_lengths(self.values, self.column) // inner


@dataclass(frozen=True)
class Features:
    """The features of a batch of rows.

    Attributes:
        inputs: one array or `VariableColumn` for each input of the model.
    """

    inputs: tuple[Any, ...]

    def __getitem__(self, rows: slice) -> list[Any]:
        return [values[rows] for values in self.inputs]

    def sorted_by_length(self) -> "tuple[Features, Array | None]":
        """Return rows of similar lengths together, so that they need little padding.

        Returns:
            The features, from the shortest row to the longest, and the place that each row has in
            them; None if the rows have stayed in their order.
        """
        if not self._padded:
            return self, None
        order = np.argsort(np.sum([c.lengths for c in self._padded], axis=0), kind="stable")
        taken = [
            replace(values, values=values.values.take(pa.array(order)))
            if isinstance(values, VariableColumn)
            else values[order]
            for values in self.inputs
        ]
        return Features(tuple(taken)), np.argsort(order)

    @property
    def _padded(self) -> list[VariableColumn]:
        return [i for i in self.inputs if isinstance(i, VariableColumn) and not i.spec.ragged]

    def without_padding(self, output: Any, spec: TensorSpec, rows: slice) -> Any:
        """Return an output for some of the rows, cut where the inputs were padded.

        Args:
            output: what the model has computed for the rows.
            spec: the output.
            rows: the rows.

        Raises:
            RuntimeError: if the output does not have one value for each value of the inputs, or
                arrays within its rows may contain values that were computed from padding.
        """
        shape = spec.shape or ()
        if None not in shape or isinstance(output, RaggedRows):
            return output
        self._check_inner_axes(output, spec, rows)
        lengths = [column.lengths[rows] for column in self._padded]
        padded = [each for each in lengths if (each != padded_width(each)).any()]
        if not padded:
            return output
        fitting = [each for each in lengths if padded_width(each) == output.shape[1]]
        is_clear = all((each == fitting[0]).all() for each in fitting)
        if not fitting or not is_clear or None in shape[1:]:
            raise RuntimeError(
                f"the model's output {spec.name!r} has the shape {list(output.shape[1:])} for rows "
                f"that were padded to {padded_width(padded[0])} values; expected one value for "
                "each value of a row, so that those of the padding can be cut off. Reduce the "
                "variable axis in the model, or pass batch_size=1."
            )
        return RaggedRows.cut(output, fitting[0])

    def _check_inner_axes(self, output: Any, spec: TensorSpec, rows: slice) -> None:
        """Refuse an output that keeps an axis along which arrays within the rows were padded."""
        inside = [column for column in self._padded if column.is_padded_inside(rows)]
        # A model may reduce the inner axis with a mask, and keep the outer one.
        keeps_outer = any((column.spec.shape or ())[0] is None for column in inside)
        if inside and (None in (spec.shape or ())[1:] or not keeps_outer):
            names = ", ".join(repr(column.column.name) for column in inside)
            raise RuntimeError(
                f"the model's output {spec.name!r} has the shape {list(output.shape[1:])} for rows "
                f"of {names}, in which arrays of different lengths within a row were padded; "
                "expected an output without that axis, because values of the padding cannot be "
                "cut off. Reduce the inner axis in the model, or make the arrays within a row "
                "equally long and pass batch_size=1."
            )
