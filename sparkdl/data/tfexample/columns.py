"""Runs anywhere. The one table of types between DataFrames and `tf.train.Example`.

| Spark | Example | |
|---|---|---|
| boolean, tinyint, smallint, int, bigint | int64 list | |
| float, double | float list | in single precision |
| string (UTF-8), binary | bytes list | |
| array of these | the same, of any length | none of its elements is null |
| null | no such feature | |

It is the table of TensorFlowOnSpark's `dfutil`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa

from sparkdl.errors import ConfigError

__all__ = ["Column", "Kind", "columns_of", "struct_of"]


class Kind(IntEnum):
    """What a feature holds; the numbers are those of the fields of `tf.train.Feature`."""

    BYTES = 1
    FLOAT = 2
    INT64 = 3


@dataclass(frozen=True)
class Column:
    """A column and the feature that it is written to and read from.

    Attributes:
        name: of both.
        kind: what the feature holds.
        type: the column's Arrow type; of the elements where it is an array.
        is_array: the feature has any number of values; else it has one.
    """

    name: str
    kind: Kind
    type: pa.DataType
    is_array: bool = False

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the whole column."""
        return pa.list_(self.type) if self.is_array else self.type


# Spark's types by `DataType.typeName()`: a training process needs no Spark to read this module.
_TYPES: dict[str, tuple[Kind, pa.DataType]] = {
    "boolean": (Kind.INT64, pa.bool_()),
    "byte": (Kind.INT64, pa.int8()),
    "short": (Kind.INT64, pa.int16()),
    "integer": (Kind.INT64, pa.int32()),
    "long": (Kind.INT64, pa.int64()),
    "float": (Kind.FLOAT, pa.float32()),
    "double": (Kind.FLOAT, pa.float64()),
    "string": (Kind.BYTES, pa.string()),
    "char": (Kind.BYTES, pa.string()),
    "varchar": (Kind.BYTES, pa.string()),
    "binary": (Kind.BYTES, pa.binary()),
}
_ADVICE = {
    "vectorudt": "Turn it into an array: vector_to_array(column, 'float32').",
    "array": "Flatten the arrays within it, and reshape them in the training function.",
    "struct": "Select its fields as columns of their own: df.select('s.*').",
}


def columns_of(schema: Any) -> list[Column]:
    """How the columns of a DataFrame, by its `StructType`, are kept in Examples.

    Raises:
        ConfigError: a type has no place there, a name appears twice, or there is no column.

    Example:
        >>> from pyspark.sql.types import ArrayType, DoubleType, StructType
        >>> [column] = columns_of(StructType().add("pixels", ArrayType(DoubleType())))
        >>> column.kind.name, column.is_array
        ('FLOAT', True)
    """
    names = [field.name for field in schema]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two columns are called {name!r}. Rename one of them.")
    if not names:
        raise ConfigError("the DataFrame has no column; expected at least one to write or read.")
    return [_column(field) for field in schema]


def _column(field: Any) -> Column:
    given = field.dataType
    is_array = given.typeName() == "array"
    inner = given.elementType if is_array else given
    if inner.typeName() not in _TYPES:
        advice = _ADVICE.get(given.typeName(), "Cast it, or leave it out.")
        raise ConfigError(
            f"column {field.name!r} is of type {given.simpleString()}; expected boolean, a whole "
            "number, float, double, string, binary, or an array of these: TFRecord files hold no "
            f"others. {advice}"
        )
    return Column(field.name, *_TYPES[inner.typeName()], is_array)


def struct_of(columns: Iterable[tuple[str, Kind, bool]], strings: Sequence[str] = ()) -> Any:
    """The `StructType` of a DataFrame for features.

    Args:
        columns: name, kind, and whether it has any number of values.
        strings: which of them are read as text; the other bytes are binary.

    Example:
        >>> struct_of([("id", Kind.INT64, False), ("word", Kind.BYTES, True)], ["word"])
        ... # doctest: +NORMALIZE_WHITESPACE
        StructType([StructField('id', LongType(), True),
                    StructField('word', ArrayType(StringType(), True), True)])
    """
    from pyspark.sql.types import ArrayType, BinaryType, FloatType, LongType, StringType, StructType

    inferred = {Kind.INT64: LongType(), Kind.FLOAT: FloatType(), Kind.BYTES: BinaryType()}
    schema = StructType()
    for name, kind, is_array in columns:
        inner: Any = StringType() if name in strings else inferred[kind]
        schema.add(name, ArrayType(inner) if is_array else inner)
    return schema
