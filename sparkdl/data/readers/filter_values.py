"""Runs anywhere (pure). The values of the `filter` of `parquet`, in the types of their columns.

pyarrow takes whole numbers of Python as int64, which it compares neither with all of uint64 nor
with decimals.
"""

from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

from sparkdl.errors import ConfigError


def typed_values(condition: Any, schema: pa.Schema) -> Any:
    """Return a condition whose values have the types of columns of uint64 and decimals.

    Args:
        condition: see the `filter` of `parquet`; only lists of conditions are changed.
        schema: the columns.

    Raises:
        ConfigError: if a column of uint64 cannot have a value.

    Example:
        >>> typed_values([("id", ">", 2**63)], pa.schema({"id": pa.uint64()}))
        [('id', '>', <pyarrow.UInt64Scalar: 9223372036854775808>)]
    """
    if isinstance(condition, list):
        return [typed_values(each, schema) for each in condition]
    if not isinstance(condition, tuple) or len(condition) != 3:
        return condition
    name, sign, value = condition
    if not isinstance(name, str) or schema.names.count(name) != 1:
        return condition
    field = schema.field(name)
    if not (types.is_uint64(field.type) or types.is_decimal(field.type)):
        return condition
    if isinstance(value, list | tuple | set | frozenset):
        values = [_in_type_of(each, field) for each in value]
        if all(isinstance(each, pa.Scalar) for each in values):
            return name, sign, pa.array([each.as_py() for each in values], field.type)
        return condition
    return name, sign, _in_type_of(value, field)


def _in_type_of(value: Any, field: pa.Field) -> Any:
    """Return a number in the type of a column; other values, and those it has not, as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    is_whole = types.is_uint64(field.type)
    try:
        if isinstance(value, float) and not is_whole:
            return value
        typed = pa.scalar(int(value) if is_whole else value, field.type)
        if typed.as_py() == value:
            return typed
    except (pa.ArrowException, ArithmeticError, ValueError):
        pass
    if is_whole:
        raise ConfigError(
            f"filter compares column {field.name!r}, which is uint64, with {value!r}; expected a "
            "whole number from 0 to 2**64 - 1."
        )
    return value
