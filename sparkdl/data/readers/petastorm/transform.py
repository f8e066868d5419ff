"""Runs in the training process. Use a `TransformSpec` of petastorm as the function of `map=`.

With a Unischema its function is called with a dict of the values of each row, and otherwise with a
pandas DataFrame, here of a batch. Dates and times are those of petastorm, see `times`. Source:
`petastorm/transform.py`, `py_dict_reader_worker.py` and `arrow_reader_worker.py` of petastorm
0.13.1.
"""

import dataclasses
import functools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data.batch_map import Map
from sparkdl.data.batching import Batches
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.exact_numbers import first_inexact
from sparkdl.data.readers.petastorm.times import to_frame, to_numbers, to_times
from sparkdl.errors import ConfigError

_ATTRIBUTES = ("func", "edit_fields", "removed_fields", "selected_fields")


def is_transform(value: Any) -> bool:
    """Return True for a `TransformSpec`."""
    return all(hasattr(value, name) for name in _ATTRIBUTES)


def transformed(
    batches: Batches, spec: Any, schema: pa.Schema, pad: Any, is_by_row: bool
) -> Batches:
    """Return the arguments of a reader with the function and the columns of a `TransformSpec`.

    Args:
        batches: the arguments without the `TransformSpec`.
        spec: the `TransformSpec`.
        schema: names and types of the columns of the data.
        pad: the argument `pad` of the reader.
        is_by_row: True if the function takes a dict of one row, False if it takes a DataFrame.

    Raises:
        ConfigError: if a selected column is removed or does not exist, or columns are padded.
    """
    if pad:
        raise ConfigError(
            f"pad is {pad!r} and map is a TransformSpec, whose function has rows without others to "
            "pad them for. Pass data.Map(function), whose function has whole batches."
        )
    fields = {field[0]: (np.dtype(field[1]), tuple(field[2])) for field in spec.edit_fields}
    names = [n for n in schema.names if n not in spec.removed_fields and n not in fields]
    names += fields
    if spec.selected_fields is not None:
        names = [name for name in spec.selected_fields if name in names]
    selected = batches.feature_cols, batches.label_cols, batches.weight_col
    selection = ColumnSelection.among(names, *selected)
    kinds = {field.name: field.type for field in schema}
    function = (_by_row if is_by_row else _by_frame)(spec.func, names, fields, kinds)
    return dataclasses.replace(
        batches,
        feature_cols=selection.features,
        map=None if spec.func is None else Map(function),
    )


Fields = Mapping[str, tuple["np.dtype[Any]", tuple[int | None, ...]]]
Function = Callable[..., dict[str, Any]]
Kinds = Mapping[str, pa.DataType]


def _by_row(
    function: Callable[..., Any], names: Sequence[str], fields: Fields, kinds: Kinds
) -> Function:
    def of_batch(rows: Mapping[str, Any]) -> dict[str, Any]:
        values = zip(*(to_times(rows[n], kinds[n]) for n in rows), strict=True)
        result = [function(dict(zip(rows, row, strict=True))) for row in values]
        for row in result:
            _check_returned(names, row)
        return _columns({n: [row[n] for row in result] for n in names}, rows, fields, kinds)

    return _with_name_of(of_batch, function)


def _by_frame(
    function: Callable[..., Any], names: Sequence[str], fields: Fields, kinds: Kinds
) -> Function:
    def of_batch(rows: Mapping[str, Any]) -> dict[str, Any]:
        frame = to_frame(rows, kinds)
        result = function(frame)
        if len(result) != len(frame):
            raise ValueError(
                f"it returned {len(result)} rows for {len(frame)}; expected as many. Leave rows "
                "out with where=, so that all ranks know how many there are."
            )
        _check_returned(names, result.columns)
        return _columns({n: list(result[n].to_numpy()) for n in names}, rows, fields, kinds)

    return _with_name_of(of_batch, function)


def _check_returned(names: Sequence[str], returned: Container[str]) -> None:
    """Refuse rows that lack a column: its stored values may belong to other rows by now."""
    for name in names:
        if name not in returned:
            raise ValueError(f"it returned no {name!r}. Return it, or name it in removed_fields.")


def _with_name_of(of_batch: Function, function: Callable[..., Any]) -> Function:
    """Return a function that error messages call by the name of the user's."""
    return functools.update_wrapper(of_batch, function) if callable(function) else of_batch


def _columns(
    values_by_name: Mapping[str, list[Any]],
    stored_columns: Mapping[str, Any],
    fields: Fields,
    kinds: Kinds,
) -> dict[str, Any]:
    """Return the columns that a function has made, of which the values are given by name."""
    return {
        name: _column(
            to_numbers(values, kinds.get(name, pa.null())),
            fields.get(name),
            stored_columns.get(name),
        )
        for name, values in values_by_name.items()
    }


def _column(values: list[Any], field: Any, stored_column: Any) -> "np.ndarray[Any, Any]":
    """Return the values of all rows as one array, of the type and shape of an edited field.

    Args:
        values: the value of each row.
        field: dtype and shape of an edited field; None for another one.
        stored_column: the column before the function; None if there is none.
    """
    dtype, shape = field or (None, None)
    is_ragged = None in shape if shape is not None else _is_ragged(stored_column)
    if is_ragged:
        column = np.empty(len(values), object)
        column[:] = [_cast(np.asarray(value), dtype) for value in values]
        return column
    if isinstance(values[0], str | bytes):  # NumPy's own type for bytes cuts off zeros.
        return np.array(values, object)
    array = _cast(np.stack([np.asarray(value) for value in values]), dtype)
    if shape is None or array.shape[1:] == shape:
        return array
    if array.ndim != 2:  # Flat values have no order of their own that could get lost.
        raise ValueError(
            f"it returned an array of shape {array.shape[1:]}; expected {shape}, as in edit_fields."
        )
    return array.reshape(len(values), *shape)


def _is_ragged(column: Any) -> bool:
    return column is not None and column.dtype == object and isinstance(column[0], np.ndarray)


def _cast(array: "np.ndarray[Any, Any]", dtype: Any) -> "np.ndarray[Any, Any]":
    """Return an array in a dtype, in which whole numbers stay the same."""
    if dtype is None or dtype.kind in "OSUM":  # Times are numbers by now.
        return array
    if array.dtype.kind not in "biu" or dtype.kind not in "biu":
        return array.astype(dtype, casting="same_kind", copy=False)
    if (value := first_inexact(array, dtype)) is not None:
        raise ValueError(f"it returned {value}, which {dtype} cannot represent.")
    return array.astype(dtype, copy=False)
