"""Runs anywhere. The table of types between DataFrames and `tf.train.Example`.

| Spark | Example | |
|---|---|---|
| boolean, tinyint, smallint, int, bigint | int64 list | |
| float, double | float list | in single precision |
| string (UTF-8), binary | bytes list | |
| array of these | the same list, of any length | no element may be null |
| null | the feature is absent | |

The table is the same as that of TensorFlowOnSpark's `dfutil`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa

from sparkdl.errors import ConfigError


class Kind(IntEnum):
    """The kind of list in a feature; the numbers are the field numbers of `tf.train.Feature`."""

    BYTES = 1
    FLOAT = 2
    INT64 = 3


@dataclass(frozen=True)
class Column:
    """A column of a DataFrame and its feature.

    Attributes:
        name: name of the column and of the feature.
        kind: kind of list in the feature.
        type: Arrow type of the column; for an array, the type of its elements.
        is_array: True if the feature has any number of values; False if it has one value.
    """

    name: str
    kind: Kind
    type: pa.DataType
    is_array: bool = False

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the whole column."""
        return pa.list_(self.type) if self.is_array else self.type


# Spark's types by `DataType.typeName()`, so that a training process can import this module
# without Spark.
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
    "vectorudt": "Convert it to an array: vector_to_array(column, 'float32').",
    "array": "Flatten the inner arrays, and reshape them in the training function.",
    "struct": "Select its fields as separate columns: df.select('s.*').",
}


def columns_of(schema: Any) -> list[Column]:
    """Return the columns of a DataFrame, with their features.

    Args:
        schema: the `StructType` of the DataFrame.

    Raises:
        ConfigError: if a type is not supported, a name appears twice, or there is no column.

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
    kind = field.dataType
    is_array = kind.typeName() == "array"
    inner = kind.elementType if is_array else kind
    if inner.typeName() not in _TYPES:
        advice = _ADVICE.get(kind.typeName(), "Cast it, or leave it out.")
        raise ConfigError(
            f"column {field.name!r} is of type {kind.simpleString()}; expected boolean, an integer "
            "type, float, double, string, binary, or an array of these, which are the types that "
            f"TFRecord files support. {advice}"
        )
    return Column(field.name, *_TYPES[inner.typeName()], is_array)


def struct_of(columns: Iterable[tuple[str, Kind, bool]], strings: Sequence[str] = ()) -> Any:
    """Return the `StructType` of a DataFrame for features.

    Args:
        columns: name and kind of each feature, and True if it has any number of values.
        strings: names of the bytes features that are text; other bytes features are binary.

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
