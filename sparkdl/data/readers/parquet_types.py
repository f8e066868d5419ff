"""Runs anywhere (pure). Types that differ in Arrow and that Parquet stores alike."""

from collections.abc import Collection

import pyarrow as pa
from pyarrow import types

_LISTS = (types.is_list, types.is_large_list, types.is_fixed_size_list)
_STORED_ALIKE = (
    _LISTS,
    (types.is_string, types.is_large_string),
    (types.is_binary, types.is_large_binary),
    (types.is_timestamp,),
)


def is_stored_alike(kind: pa.DataType, other: pa.DataType) -> bool:
    """Return True if the types differ in what Arrow has and Parquet has not.

    These are dictionaries, the width of offsets, and the length of all lists. A column that is
    null in all rows of a file has no type.
    """
    if types.is_dictionary(kind) or types.is_dictionary(other):
        values = (each.value_type if types.is_dictionary(each) else each for each in (kind, other))
        return is_stored_alike(*values)
    if types.is_null(kind) or types.is_null(other):
        return True
    for tests in _STORED_ALIKE:
        if all(any(is_of(each) for is_of in tests) for each in (kind, other)):
            return tests is not _LISTS or is_stored_alike(kind.value_type, other.value_type)
    return bool(kind == other)


def comparable_type(kind: pa.DataType) -> pa.DataType:
    """Return a type that the values of all writers have: views are plain, lists may have nulls."""
    if is_view(kind):
        return pa.string() if types.is_string_view(kind) else pa.binary()
    if types.is_fixed_size_list(kind):
        return pa.list_(comparable_type(kind.value_type), kind.list_size)
    if types.is_list(kind):
        return pa.list_(comparable_type(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(comparable_type(kind.value_type))
    return kind


def is_view(kind: pa.DataType) -> bool:
    """Return True for a type of text or bytes with views, which pyarrow supports in part only."""
    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def common_schema(schema: pa.Schema, other: pa.Schema, but: Collection[str] = ()) -> pa.Schema:
    """Return columns with types that hold the values of the columns of another file too.

    Args:
        schema: the columns.
        other: the columns of another file; a column whose values are not comparable keeps its type.
        but: names of the columns that keep their types.

    Example:
        >>> pair, rows = pa.list_(pa.int64(), 2), pa.list_(pa.int64())
        >>> common_schema(pa.schema({"x": pair}), pa.schema({"x": rows})).field("x").type
        ListType(list<item: int64>)
    """
    kinds = dict(zip(schema.names, schema.types, strict=True))
    for name, kind in zip(other.names, other.types, strict=True):
        if name in kinds and name not in but:
            kinds[name] = _common_type(kinds[name], kind)
    return pa.schema(list(kinds.items()))


def _common_type(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type for the values of both types; the order matters only to zones.

    A tensor has microseconds, so timestamps of different units become these.
    """
    if kind == other or types.is_null(other) or not is_stored_alike(kind, other):
        return kind
    if types.is_null(kind):
        return other
    if types.is_dictionary(kind) or types.is_dictionary(other):
        # The indices of one file may be too narrow for those of another one.
        values = (each.value_type if types.is_dictionary(each) else each for each in (kind, other))
        return _common_type(*values)
    if types.is_timestamp(kind):
        return pa.timestamp(kind.unit if kind.unit == other.unit else "us", kind.tz)
    if any(is_of(kind) for is_of in _LISTS):
        values = _common_type(kind.value_type, other.value_type)
        lengths = {
            each.list_size if types.is_fixed_size_list(each) else -1 for each in (kind, other)
        }
        if len(lengths) == 1 and -1 not in lengths:
            return pa.list_(values, lengths.pop())
        is_large = types.is_large_list(kind) or types.is_large_list(other)
        return pa.large_list(values) if is_large else pa.list_(values)
    return kind if types.is_large_string(kind) or types.is_large_binary(kind) else other
