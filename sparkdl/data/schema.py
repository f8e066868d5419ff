"""Runs anywhere (pure). The one table of types: what a column becomes in a tensor.

| Spark | Arrow | tensor | |
|---|---|---|---|
| tinyint, smallint, int, bigint | int8 to int64, uint8 to uint64 | the same | |
| float, double | float16, float32, float64 | the same | |
| boolean | bool | bool | |
| decimal of at most 15 digits | decimal128 | float64 | which tells all of them apart |
| string, char, varchar | string | string | UTF-8 |
| binary | binary, fixed_size_binary | string | or numbers, with `decode` |
| date | date32 | int32 | days since 1970-01-01 |
| timestamp, timestamp_ntz | timestamp | int64 | microseconds since 1970-01-01 (UTC) |
| array of these, nested too | list, fixed_size_list | one dimension more | fixed, or ragged |
| ML vector, dense or sparse | list of float32 | float32, one dimension | |

All other types are refused. A null is refused too, unless `fill` says what stands for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from sparkdl.errors import ConfigError, suggest

__all__ = ["Column", "UnsupportedType", "arrow_type", "column", "columns"]

# Spark's types, by `DataType.typeName()`, that need no look at their parameters.
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

# Any decimal of so many digits survives the way to a float64 and back (IEEE 754 binary64).
MOST_DIGITS = 15

_BYTES = np.dtype(object)  # How NumPy holds strings; a tensor of them is tf.string.


class UnsupportedType(TypeError):
    """A column's type has no tensor; the message says what to do instead."""


@dataclass(frozen=True)
class Column:
    """How one column becomes a tensor.

    Attributes:
        name: its name.
        dtype: of the tensor; `object` for strings.
        depth: how many dimensions it has beside that of the rows.
        ragged: rows may have different lengths.
        decode: it is binary and holds numbers of `dtype`.
        fill: what stands for a null; None refuses it.
    """

    name: str
    dtype: "np.dtype[Any]"
    depth: int = 0
    ragged: bool = False
    decode: bool = False
    fill: Any = None


def arrow_type(spark_type: Any) -> pa.DataType:
    """The Arrow type in which a column of this Spark type reaches a training process.

    Raises:
        UnsupportedType: it has none.

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
            raise UnsupportedType("Convert its vectors to arrays.")
        return pa.list_(pa.field("element", arrow_type(spark_type.elementType)))
    if name not in _SPARK:
        raise UnsupportedType(_ADVICE.get(name, "Cast it to a type of numbers, strings or arrays."))
    return _SPARK[name]


_ADVICE = {
    "struct": "Select its fields as columns of their own: df.select('s.*').",
    "map": "Select the values that are needed as columns: df.select(df.m['key']).",
    "void": "The column holds nothing but nulls; leave it out.",
    "variant": "Extract what is needed with variant_get.",
    "matrixudt": "Select its values as an array.",
}


def column(
    field: pa.Field,
    *,
    ragged: Sequence[str] = (),
    decode: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
) -> Column:
    """How a column of this Arrow type becomes a tensor.

    Args:
        field: its name and type.
        ragged: the columns whose arrays differ in length from row to row.
        decode: binary columns that hold numbers, with their dtype, such as `{"image": "uint8"}`.
        fill: what stands for a null, by column.

    Raises:
        UnsupportedType: there is no tensor for this type.

    Example:
        >>> column(pa.field("x", pa.list_(pa.float32())))
        Column(name='x', dtype=dtype('float32'), depth=1, ragged=False, decode=False, fill=None)
    """
    kind, depth = field.type, 0
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    name, fills = field.name, (fill or {}).get(field.name)
    if name in ragged and not depth:
        raise UnsupportedType(f"ragged names column {name!r} of type {field.type}, not an array.")
    if decode and name in decode:
        if depth or not _is_binary(kind):
            raise UnsupportedType(
                f"decode names column {name!r} of type {field.type}; expected a binary one."
            )
        return Column(name, np.dtype(decode[name]), 1, decode=True, fill=fills)
    return Column(name, _dtype(name, kind), depth, name in ragged, fill=fills)


def columns(schema: pa.Schema, names: Sequence[str], **options: Any) -> list[Column]:
    """`column` for each of `names`, in their order.

    Raises:
        UnsupportedType: of one or more columns; all are named.
        ConfigError: an option names a column that is not there.
        KeyError: there is no such column.
    """
    _check_options(schema.names, options)
    found, wrong = [], []
    for name in names:
        try:
            found.append(column(schema.field(name), **options))
        except UnsupportedType as exc:
            wrong.append(str(exc))
    if wrong:
        raise UnsupportedType("\n".join(wrong))
    return found


def _check_options(names: Sequence[str], options: Mapping[str, Any]) -> None:
    for option, given in options.items():
        if isinstance(given, str):
            raise ConfigError(f"{option} is {given!r}; expected columns by name, not one string.")
        for name in given or ():
            if name not in names:
                raise ConfigError(
                    f"{option} names {name!r}, which is no column.{suggest(name, names)} Columns "
                    f"are {', '.join(names)}."
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
        if kind.precision <= MOST_DIGITS:
            return np.dtype(np.float64)
        raise UnsupportedType(
            f"column {name!r} is {kind}: more than the {MOST_DIGITS} digits that a float64 keeps "
            "apart. Cast it to double, or to a decimal of fewer digits."
        )
    raise UnsupportedType(
        f"column {name!r} is {kind}, which has no tensor. Cast it to a type of numbers, strings "
        "or arrays, or leave it out."
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )
