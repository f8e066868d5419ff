"""Runs anywhere (pure). The table of types: the tensor that each column type becomes.

| Spark | Arrow | tensor | |
|---|---|---|---|
| tinyint, smallint, int, bigint | int8 to int64, uint8 to uint64 | the same | |
| float, double | float16, float32, float64 | the same | |
| boolean | bool | bool | |
| decimal of at most 15 digits | decimal128 | float64 | exact: distinct values stay distinct |
| string, char, varchar | string | string | UTF-8 |
| binary | binary, fixed_size_binary | string | numbers, with `decode` |
| date | date32 | int32 | days since 1970-01-01 |
| timestamp, timestamp_ntz | timestamp | int64 | microseconds since 1970-01-01 (UTC) |
| array of these, also nested | list, fixed_size_list | one more dimension | fixed, or ragged |
| ML vector, dense or sparse | list of float32, struct | float32, one dimension | with the zeros |

All other types are refused. A null is refused too, unless `fill` has a value that replaces it: in
an array each value that is null, in a binary column with `decode` all numbers of a null.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from sparkdl.data.ml_vectors import is_vector
from sparkdl.errors import ConfigError, suggest

# Spark's types without parameters, by `DataType.typeName()`.
_SPARK = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "char": pa.string(),
    "varchar": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "vectorudt": pa.list_(pa.float32()),
}

# A decimal of at most 15 digits survives the conversion to float64 and back (IEEE 754 binary64).
MAX_DECIMAL_DIGITS = 15

_BYTES = np.dtype(object)  # NumPy's dtype for strings; their tensor is tf.string.


class UnsupportedType(TypeError):
    """Raised for a column whose type has no tensor; the message says what to do instead."""


@dataclass(frozen=True)
class Column:
    """The conversion of one column to a tensor.

    Attributes:
        name: name of the column.
        dtype: dtype of the tensor; `object` for strings.
        depth: number of the tensor's dimensions after that of the rows.
        ragged: True if rows may have different lengths.
        decode: True if the column is binary and holds numbers of `dtype`.
        fill: value that replaces a null; None refuses nulls.
        pad: value that fills shorter rows up to the longest of their batch; None does not.
        is_vector: True for vectors of Spark ML as Parquet files have them.
    """

    name: str
    dtype: "np.dtype[Any]"
    depth: int = 0
    ragged: bool = False
    decode: bool = False
    fill: Any = None
    pad: Any = None
    is_vector: bool = False


def arrow_type(spark_type: Any) -> pa.DataType:
    """Return the Arrow type in which a column of a Spark type reaches a training process.

    Args:
        spark_type: a `pyspark.sql.types.DataType`.

    Raises:
        UnsupportedType: if the type cannot become a tensor.

    Example:
        >>> from pyspark.sql.types import ArrayType, FloatType
        >>> arrow_type(ArrayType(FloatType()))
        ListType(list<element: float>)
    """
    name = spark_type.typeName()
    if name == "decimal":
        return pa.decimal128(spark_type.precision, spark_type.scale)
    if name == "array":
        if spark_type.elementType.typeName() == "vectorudt":
            raise UnsupportedType("Convert the vectors to arrays.")
        return pa.list_(pa.field("element", arrow_type(spark_type.elementType)))
    if name not in _SPARK:
        raise UnsupportedType(_ADVICE.get(name, "Cast it to a type of numbers, strings or arrays."))
    return _SPARK[name]


_ADVICE = {
    "struct": "Select its fields as separate columns: df.select('s.*').",
    "map": "Select the values that are needed as columns: df.select(df.m['key']).",
    "void": "The column holds only nulls; leave it out.",
    "variant": "Extract the values that are needed with variant_get.",
    "matrixudt": "Select its values as an array.",
}


def column(
    field: pa.Field,
    *,
    ragged: Sequence[str] = (),
    decode: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    pad: Mapping[str, Any] | None = None,
) -> Column:
    """Return the conversion of an Arrow column to a tensor.

    Args:
        field: name and type of the column.
        ragged: names of the columns whose arrays differ in length from row to row.
        decode: dtypes of the binary columns that hold numbers, by name: `{"image": "uint8"}`.
        fill: values that replace nulls, by column name.
        pad: values that fill shorter arrays up to the longest of their batch, by column name; the
            columns are ragged until then.

    Raises:
        UnsupportedType: if the type cannot become a tensor.
        ConfigError: if a value of `fill` or `pad` is not of the column's type.

    Example:
        >>> column(pa.field("x", pa.list_(pa.float32())), pad={"x": 0}).ragged
        True
    """
    is_struct = is_vector(field.type)
    kind = pa.list_(pa.float32()) if is_struct else field.type
    depth = 0
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    name, fill_value = field.name, (fill or {}).get(field.name)
    pad_value = (pad or {}).get(name)
    for option, names in (("ragged", ragged), ("pad", pad or ())):
        if name in names and not depth:
            raise UnsupportedType(
                f"{option} names column {name!r} of type {field.type}, not an array."
            )
    if decode and name in decode:
        if depth or not _is_binary(kind):
            raise UnsupportedType(
                f"decode names column {name!r} of type {field.type}; expected a binary one."
            )
        conversion = Column(name, np.dtype(decode[name]), 1, decode=True, fill=fill_value)
    else:
        is_ragged = name in ragged or pad_value is not None
        dtype = _dtype(name, kind)
        conversion = Column(
            name, dtype, depth, is_ragged, fill=fill_value, pad=pad_value, is_vector=is_struct
        )
    for option, value in (("fill", fill_value), ("pad", pad_value)):
        if value is not None:
            _check_value(option, value, conversion, kind)
    return conversion


def _check_value(option: str, value: Any, column: Column, kind: pa.DataType) -> None:
    """Validate the replacement of what is missing by its column, before it is needed."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    try:
        if column.decode:
            kind = pa.from_numpy_dtype(column.dtype)
        # pyarrow cuts the fraction off.
        if types.is_integer(kind) and pa.scalar(value, kind).as_py() != value:
            raise ValueError("it is not a whole number")
        pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
        raise ConfigError(
            f"{option} has {value!r} for column {column.name!r}; expected a value of {kind}: {exc}"
        ) from exc


def columns(schema: pa.Schema, names: Sequence[str], **options: Any) -> list[Column]:
    """Return the conversions of several columns, see `column`.

    Args:
        schema: names and types of all columns.
        names: names of the columns to convert.
        **options: the arguments `ragged`, `decode`, `fill` and `pad` of `column`.

    Raises:
        UnsupportedType: if columns cannot become tensors; the message names all of them.
        ConfigError: if an option names a column that does not exist.
        KeyError: if `names` has a column that does not exist.
    """
    _check_options(schema.names, options)
    conversions, problems = [], []
    for name in names:
        try:
            conversions.append(column(schema.field(name), **options))
        except UnsupportedType as exc:
            problems.append(str(exc))
    if problems:
        raise UnsupportedType("\n".join(problems))
    return conversions


def describe_conversions(schema: pa.Schema, names: Sequence[str]) -> str:
    """Describe the columns whose tensors have another type than the user sees in Spark.

    Args:
        schema: names and types of all columns.
        names: names of the columns that are read.

    Example:
        >>> describe_conversions(pa.schema({"day": pa.date32(), "x": pa.int8()}), ["day", "x"])
        "'day' (date) becomes days since 1970-01-01"
    """
    parts = []
    for name in names:
        kind = schema.field(name).type
        while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            kind = kind.value_type
        if types.is_date32(kind):
            parts.append(f"{name!r} (date) becomes days since 1970-01-01")
        elif types.is_timestamp(kind):
            parts.append(f"{name!r} (timestamp) becomes microseconds since 1970-01-01")
        elif types.is_string(kind) or types.is_large_string(kind):
            parts.append(f"{name!r} (string) becomes text, which a model must encode")
    return ", ".join(parts)


def _check_options(names: Sequence[str], options: Mapping[str, Any]) -> None:
    for option, value in options.items():
        if isinstance(value, str):
            raise ConfigError(f"{option} is {value!r}; expected columns by name, not one string.")
        for name in value or ():
            if name not in names:
                raise ConfigError(
                    f"{option} names {name!r}, which is not a column.{suggest(name, names)} "
                    f"Columns are {', '.join(names)}."
                )


def _dtype(name: str, kind: Any) -> Any:
    if types.is_dictionary(kind):
        return _dtype(name, kind.value_type)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.dtype(kind.to_pandas_dtype())
    if types.is_string(kind) or types.is_large_string(kind) or _is_binary(kind):
        return _BYTES
    if types.is_date32(kind):
        return np.dtype(np.int32)
    if types.is_timestamp(kind):
        return np.dtype(np.int64)
    if types.is_decimal128(kind):
        if kind.precision <= MAX_DECIMAL_DIGITS:
            return np.dtype(np.float64)
        raise UnsupportedType(
            f"column {name!r} is {kind}: more than the {MAX_DECIMAL_DIGITS} digits that a float64 "
            "represents exactly. Cast it to double, or to a decimal of fewer digits."
        )
    if types.is_duration(kind) or types.is_interval(kind):
        raise UnsupportedType(
            f"column {name!r} is an interval, which cannot become a tensor. Write a number in its "
            "place, such as its seconds or months, or leave it out."
        )
    if types.is_null(kind):
        raise UnsupportedType(
            f"column {name!r} is null in all rows, so that it has no type. Leave it out, or write "
            "it with a type."
        )
    raise UnsupportedType(
        f"column {name!r} is {kind}, which cannot become a tensor. Cast it to a type of numbers, "
        "strings or arrays, or leave it out."
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )
