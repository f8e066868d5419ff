"""Runs on the driver. Match feature columns to the inputs of a model before any job starts."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data import schema as data_schema
from sparkdl.data.arrow_arrays import Arrays
from sparkdl.data.column_selection import ColumnSelection, stacked_dtype
from sparkdl.data.schema import Column, UnsupportedType
from sparkdl.errors import ConfigError, suggest
from sparkdl.inference import loader
from sparkdl.inference.declared_model import DeclaredModel
from sparkdl.inference.loader import LoadedModel
from sparkdl.inference.tensor_spec import TensorSpec, fits


def columns_of(schema: Any, names: Sequence[str], **options: Any) -> tuple[Column, ...]:
    """Return the conversion to an array for each of these columns of a DataFrame.

    Args:
        schema: the DataFrame's schema.
        names: names of the columns.
        **options: `fill` and `decode`, see `data.schema.column`.

    Raises:
        ConfigError: if columns have types that cannot become arrays; the message names all of
            them. Also if an option names a column that is not in `names`.
    """
    for option, option_columns in options.items():
        for name in option_columns or ():
            if name not in names:
                raise ConfigError(
                    f"{option} names {name!r}, which is not a feature column.{suggest(name, names)}"
                )
    columns = []
    problems = []
    for name in names:
        spark_type = schema[name].dataType
        try:
            field = pa.field(name, data_schema.arrow_type(spark_type))
            columns.append(data_schema.column(field, **options))
        except UnsupportedType as exc:
            problems.append(f"feature column {name!r} is {spark_type.simpleString()}: {exc}")
    if problems:
        raise ConfigError("\n".join(problems))
    return tuple(columns)


def with_ragged_inputs(model: LoadedModel, features: Any) -> LoadedModel:
    """Return the model with an input for each `tf.RaggedTensor`, if the features are for these.

    Args:
        model: the model of a SavedModel, in which each ragged input is several inputs.
        features: see `columns_by_input`.
    """
    grouped = loader.with_ragged_inputs(model)
    names = {spec.name for spec in grouped.inputs}
    if isinstance(features, Mapping):
        return grouped if set(features) == names else model
    return grouped if len(names) == 1 and not isinstance(features, tuple) else model


def columns_by_input(model: LoadedModel | DeclaredModel, features: Any) -> tuple[Any, ...]:
    """Return the feature columns of each input, in the model's order.

    Args:
        model: the model.
        features: a column's name or a list of names for a single input; a tuple, by position, or
            a dict, by name of the input, for several inputs.

    Raises:
        ConfigError: if the features do not match the inputs of the model.
    """
    names = [spec.name for spec in model.inputs]
    if isinstance(features, Mapping):
        if set(features) != set(names):
            raise ConfigError(
                f"feature_cols names the inputs {', '.join(map(repr, features))}; the model has "
                f"the inputs {', '.join(map(repr, names))}."
            )
        return tuple(features[name] for name in names)
    parts = features if isinstance(features, tuple) else (features,)
    if len(parts) != len(names) or (model.by_name and len(names) > 1):
        example = "{" + ", ".join(f"{name!r}: ..." for name in names) + "}"
        raise ConfigError(
            f"feature_cols={features!r} is for {len(parts)} input(s), but the model has "
            f"{len(names)}: {', '.join(map(str, model.inputs))}. Name the columns of each input: "
            f"feature_cols={example}" + ("." if model.by_name else ", or a tuple in that order.")
        )
    return tuple(parts)


def complete_inputs(
    inputs: Sequence[TensorSpec],
    selection: ColumnSelection,
    columns: Sequence[Column],
    keep_dtypes: bool = False,
) -> tuple[TensorSpec, ...]:
    """Return the inputs with unknown shapes and dtypes taken from their feature columns.

    Args:
        inputs: the inputs of the model.
        selection: the feature columns: a tuple with the columns of each input.
        columns: the conversion of each column to an array.
        keep_dtypes: True to take over the dtype float64, too; otherwise it becomes float32.

    Raises:
        ConfigError: if the columns of an input have another shape or another type.
    """
    Arrays(columns, selection)  # Raises ConfigError for columns that cannot be stacked.
    by_name = {column.name: column for column in columns}
    specs = []
    for spec, choice in zip(inputs, selection.features, strict=True):
        parts = [by_name[name] for name in ColumnSelection(choice).names]
        column_dtype = stacked_dtype([part.dtype for part in parts])
        shape = _row_shape(parts, isinstance(choice, list))
        dtype = spec.dtype or _default_dtype(column_dtype, keep_dtypes)
        _check_dtype(spec.name, dtype, column_dtype, choice)
        if spec.shape is not None and not fits(shape, spec.shape):
            raise ConfigError(
                f"feature_cols {choice!r} have shape {list(shape)} per row, but the model's input "
                f"expects {spec}."
            )
        shape = shape if spec.shape is None else spec.shape
        specs.append(TensorSpec(spec.name, shape, dtype, spec.ragged))
    return tuple(specs)


def pads_of(
    declared: Sequence[TensorSpec],
    selection: ColumnSelection,
    columns: Sequence[Column],
    pad: Mapping[str, Any] | None,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Any, ...]:
    """Return the value that fills up shorter arrays for each input; None if no array is padded.

    Arrays are padded if the model declares that the rows of the input have different lengths, or
    if `pad` names the column.

    Args:
        declared: the inputs as the model declares them.
        selection: the feature columns: a tuple with the columns of each input.
        columns: the conversion of each column to an array.
        pad: values for columns.
        defaults: values for other columns; without one, it is 0, and "" for texts.

    Raises:
        ConfigError: if `pad` names a column that cannot be padded, or has a value of another type;
            or if a ragged input has other columns than one column of arrays.
    """
    by_name = {column.name: column for column in columns}
    values = dict(pad or {})
    pads: list[Any] = []
    for spec, choice in zip(declared, selection.features, strict=True):
        column = by_name[choice] if isinstance(choice, str) else None
        if column is None or not _is_variable(spec, column, column.name in values):
            if spec.ragged:
                raise ConfigError(
                    f"the model's input {spec.name!r} is ragged, and feature_cols {choice!r} are "
                    "not: expected one column of arrays."
                )
            pads.append(None)
            continue
        is_text = column.dtype == object
        default = defaults.get(column.name, "" if is_text else 0)
        pads.append(values.pop(column.name, default))
        _check_pad(column, pads[-1])
    if values:
        raise ConfigError(
            f"pad names {', '.join(map(repr, values))}; expected columns of arrays that are the "
            "only column of an input with a variable length."
        )
    return tuple(pads)


def _is_variable(spec: TensorSpec, column: Column, is_named: bool) -> bool:
    """Return True if the arrays of a column may have different lengths in an input."""
    if not column.depth or column.decode:
        return False
    if spec.shape is None:
        return is_named
    same_axes = None in spec.shape and len(spec.shape) == column.depth
    flat = column.depth == 1 and spec.shape[:1] == (None,) and None not in spec.shape[1:]
    return same_axes or flat


def _check_pad(column: Column, value: Any) -> None:
    if column.dtype == object:
        is_valid = isinstance(value, str | bytes)
    else:
        is_number = isinstance(value, int | float)
        is_valid = is_number and bool(np.asarray(value).astype(column.dtype) == value)
    if not is_valid:
        expected = "a text" if column.dtype == object else f"a number of {column.dtype}"
        raise ConfigError(f"pad has {value!r} for column {column.name!r}; expected {expected}.")


def _row_shape(parts: Sequence[Column], is_list: bool) -> tuple[int | None, ...]:
    if not is_list:
        return (None,) * parts[0].depth
    return (None if any(part.depth for part in parts) else len(parts),)


def _default_dtype(column_dtype: Any, keep_dtypes: bool) -> str:
    if column_dtype.kind == "O":
        return "string"
    # Networks compute in float32.
    is_reduced = column_dtype.kind == "f" and not keep_dtypes
    return "float32" if is_reduced else str(column_dtype)


def _check_dtype(name: str, dtype: str, column_dtype: Any, choice: Any) -> None:
    """Validate that columns can be cast to the dtype of an input without losing fractions."""
    takes_text = dtype in ("string", "bytes")
    is_text = column_dtype.kind == "O"
    takes_fractions = dtype.startswith(("float", "bfloat"))
    if takes_text == is_text and (takes_fractions or is_text or column_dtype.kind != "f"):
        return
    contents = "text" if is_text else str(column_dtype)
    raise ConfigError(
        f"the model's input {name!r} expects {dtype}, but feature_cols {choice!r} contain "
        f"{contents}. Cast the columns."
    )
