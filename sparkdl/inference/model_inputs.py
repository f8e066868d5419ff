"""Runs on the driver. Match feature columns to the inputs of a model before any job starts."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sparkdl.data import schema as data_schema
from sparkdl.data.arrow_arrays import Arrays
from sparkdl.data.column_selection import ColumnSelection, stacked_dtype
from sparkdl.data.schema import Column, UnsupportedType
from sparkdl.errors import ConfigError, suggest
from sparkdl.inference.loader import LoadedModel
from sparkdl.inference.tensor_spec import TensorSpec, fits

__all__ = ["columns_by_input", "columns_of", "complete_inputs"]


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
    columns, problems = [], []
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


def columns_by_input(model: LoadedModel, features: Any) -> tuple[Any, ...]:
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
    inputs: Sequence[TensorSpec], selection: ColumnSelection, columns: Sequence[Column]
) -> tuple[TensorSpec, ...]:
    """Return the inputs with unknown shapes and dtypes taken from their feature columns.

    Args:
        inputs: the inputs of the model.
        selection: the feature columns: a tuple with the columns of each input.
        columns: the conversion of each column to an array.

    Raises:
        ConfigError: if the columns of an input have another shape or another type.
    """
    Arrays(columns, selection)  # Raises ConfigError for columns that cannot be stacked.
    known = {column.name: column for column in columns}
    completed = []
    for spec, choice in zip(inputs, selection.features, strict=True):
        parts = [known[name] for name in ColumnSelection(choice).names]
        column_dtype = stacked_dtype([part.dtype for part in parts])
        shape = _row_shape(parts, isinstance(choice, list))
        dtype = spec.dtype or _default_dtype(column_dtype)
        _check_dtype(spec.name, dtype, column_dtype, choice)
        if spec.shape is not None and not fits(shape, spec.shape):
            raise ConfigError(
                f"feature_cols {choice!r} have shape {list(shape)} per row, but the model's input "
                f"expects {spec}."
            )
        shape = shape if spec.shape is None else spec.shape
        completed.append(TensorSpec(spec.name, shape, dtype))
    return tuple(completed)


def _row_shape(parts: Sequence[Column], is_list: bool) -> tuple[int | None, ...]:
    if not is_list:
        return (None,) * parts[0].depth
    return (None if any(part.depth for part in parts) else len(parts),)


def _default_dtype(column_dtype: Any) -> str:
    if column_dtype.kind == "O":
        return "string"
    # Keras computes in float32.
    return "float32" if column_dtype.kind == "f" else str(column_dtype)


def _check_dtype(name: str, dtype: str, column_dtype: Any, choice: Any) -> None:
    """Validate that columns can be cast to the dtype of an input without losing fractions."""
    takes_text, is_text = dtype == "string", column_dtype.kind == "O"
    takes_fractions = dtype.startswith(("float", "bfloat"))
    if takes_text == is_text and (takes_fractions or is_text or column_dtype.kind != "f"):
        return
    contents = "text" if is_text else str(column_dtype)
    raise ConfigError(
        f"the model's input {name!r} expects {dtype}, but feature_cols {choice!r} contain "
        f"{contents}. Cast the columns."
    )
