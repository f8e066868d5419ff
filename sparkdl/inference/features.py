"""Runs in a Spark task. Convert Arrow batches to the arrays that a model takes."""

from collections.abc import Iterator
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
        length: the position of the column that tells the length of each row; None without one.
    """

    columns: tuple[Column, ...]
    positions: tuple[int, ...]
    selection: ColumnSelection
    inputs: tuple[TensorSpec, ...]
    pads: tuple[Any, ...]
    length: int | None = None


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
        model = self._chosen
        for choice, spec, pad in zip(
            model.selection.features, model.inputs, model.pads, strict=True
        ):
            if pad is None:
                inputs.append(dense.pop(0))
            else:
                values = batch.column(self._positions[choice])
                inputs.append(VariableColumn(values, self._by_name[choice], spec, pad))
        given = None if model.length is None else _given_lengths(batch.column(model.length))
        return Features(tuple(inputs), given)


def _given_lengths(values: pa.Array) -> Array:
    if values.null_count:
        raise ValueError(
            f"the column of length_col has {values.null_count} nulls among {len(values)} rows. "
            "Drop these rows (df.na.drop), or fill the nulls (df.na.fill)."
        )
    return values.to_numpy(zero_copy_only=False).astype(np.int64)


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
        values = self.values[rows]
        shape = self.spec.shape or ()
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
        given_lengths: the length of each row as a column tells it; None without such a column.
    """

    inputs: tuple[Any, ...]
    given_lengths: Array | None = None

    def __len__(self) -> int:
        first = self.inputs[0]
        return len(first.values if isinstance(first, VariableColumn) else first)

    def __getitem__(self, rows: slice) -> list[Any]:
        return [values[rows] for values in self.inputs]

    @cached_property
    def lengths(self) -> Array | None:
        """The length of each row: given, or that of its longest padded array; None without."""
        if self.given_lengths is not None or not self._padded:
            return self.given_lengths
        return np.max([column.lengths for column in self._padded], axis=0)

    def sorted_by_length(self) -> "tuple[Features, Array | None]":
        """Return rows of similar lengths together, so that they need little padding.

        Returns:
            The features, from the shortest row to the longest, and the row that each was before;
            None if the rows have stayed in their order.
        """
        if self.lengths is None:
            return self, None
        order = np.argsort(self.lengths, kind="stable")
        inputs = [
            replace(values, values=values.values.take(pa.array(order)))
            if isinstance(values, VariableColumn)
            else values[order]
            for values in self.inputs
        ]
        given = self.given_lengths
        return Features(tuple(inputs), None if given is None else given[order]), order

    def slices(self, max_rows: int, max_tokens: int | None) -> Iterator[slice]:
        """Yield the rows of each call of the model; they are sorted by length.

        Args:
            max_rows: largest number of rows of a call.
            max_tokens: largest number of rows times the longest of them; None without a limit. A
                row that is longer is alone.
        """
        begin, total, lengths = 0, len(self), self.lengths
        while begin < total:
            end = min(begin + max_rows, total)
            if max_tokens is not None and lengths is not None:
                tokens = np.arange(1, end - begin + 1) * np.maximum(lengths[begin:end], 1)
                end = begin + max(1, int(np.searchsorted(tokens, max_tokens, side="right")))
            yield slice(begin, end)
            begin = end

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
        padded_lengths = [row for row in lengths if (row != padded_width(row)).any()]
        if not padded_lengths:
            return output
        candidates = [row for row in lengths if padded_width(row) == output.shape[1]]
        is_clear = all((row == candidates[0]).all() for row in candidates)
        if not candidates or not is_clear or None in shape[1:]:
            raise RuntimeError(
                f"the model's output {spec.name!r} has the shape {list(output.shape[1:])} for rows "
                f"that were padded to {padded_width(padded_lengths[0])} values; expected one value "
                "for each value of a row, so that those of the padding can be cut off. Reduce the "
                "variable axis in the model, or pass batch_size=1."
            )
        return RaggedRows.cut(output, candidates[0])

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
