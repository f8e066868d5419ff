"""Runs anywhere. Convert the features of many Examples to columns of an Arrow batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.decode import Examples, Ints, NotAnExample, read_varint


def values_of(examples: Examples, name: str) -> tuple[pa.Array, Ints]:
    """Return all values of a feature, and their number in each record; -1 if it is absent.

    Args:
        examples: the records.
        name: name of the feature.

    Raises:
        NotAnExample: if the content of the feature is damaged.
    """
    kind = examples.features[name].kind
    data, lengths = examples.content(name)
    is_present = lengths >= 0
    counts = np.where(is_present, 0, -1)
    try:
        values, counts[is_present] = _READERS[kind](data, lengths[is_present])
    except NotAnExample as error:
        raise NotAnExample(f"feature {name!r} {error}") from error
    except IndexError as error:
        raise NotAnExample(f"feature {name!r} ends within a value") from error
    return values, counts


def _floats(data: bytes, lengths: Ints) -> tuple[pa.Array, Ints]:
    if (lengths % 4).any():
        raise NotAnExample("has floats of other than 4 bytes")
    return pa.array(np.frombuffer(data, "<f4").astype(np.float32, copy=False)), lengths // 4


def _ints(data: bytes, lengths: Ints) -> tuple[pa.Array, Ints]:
    groups = np.frombuffer(data, np.uint8)
    is_last = groups < 0x80  # The last group of each number.
    stops = np.cumsum(lengths)
    if not is_last[stops[lengths > 0] - 1].all():
        raise NotAnExample("has a number that is cut off")
    ends = np.flatnonzero(is_last) + 1
    starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
    place = np.arange(len(groups)) - np.repeat(starts, ends - starts if len(ends) else 0)
    if (place > 9).any():
        raise NotAnExample("has a number of more than 10 groups of bits")
    shifted = (groups & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    numbers = np.bitwise_or.reduceat(shifted, starts) if len(ends) else shifted
    num_before = np.concatenate(([0], np.cumsum(is_last)))  # Numbers that end before each byte.
    return pa.array(numbers.view(np.int64)), num_before[stops] - num_before[stops - lengths]


def _bytes(data: bytes, lengths: Ints) -> tuple[pa.Array, Ints]:
    values: list[bytes] = []
    counts: list[int] = []
    position, end = 0, 0
    for length in lengths.tolist():
        num_before, end = len(values), end + length
        while position < end:
            if data[position] != 0x0A:
                raise NotAnExample("has an unexpected field in its list of bytes")
            size, position = read_varint(data, position + 1)
            values.append(data[position : position + size])
            position += size
        if position > end:
            raise NotAnExample("has bytes that are cut off")
        counts.append(len(values) - num_before)
    return pa.array(values, pa.binary()), np.array(counts, np.int64)


_READERS: Any = {Kind.FLOAT: _floats, Kind.INT64: _ints, Kind.BYTES: _bytes}


def to_batch(examples: Examples, columns: Sequence[Column]) -> pa.RecordBatch:
    """Return the records as rows; a feature that is absent or has no value is null.

    Args:
        examples: the records.
        columns: the columns of the result.

    Raises:
        NotAnExample: if a feature has another kind than its column, several values for a column of
            single values, or a value that does not fit the column's type.

    Example:
        >>> from sparkdl.data.tfexample.decode import decode
        >>> from sparkdl.data.tfexample.encode import encode
        >>> column = Column("word", Kind.BYTES, pa.string())
        >>> [record] = encode(pa.RecordBatch.from_pydict({"word": ["Öl"]}), [column])
        >>> to_batch(decode(record, [(0, len(record))], None), [column]).to_pylist()
        [{'word': 'Öl'}]
    """
    arrays = [_array(examples, column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _array(examples: Examples, column: Column) -> pa.Array:
    if column.name not in examples.features:
        return pa.nulls(examples.rows, column.arrow_type)
    feature = examples.features[column.name]
    if feature.kind is not column.kind:
        raise NotAnExample(
            f"feature {column.name!r} holds {feature.kind.name}; expected {column.kind.name} for "
            f"a column of {column.arrow_type}"
        )
    values, counts = values_of(examples, column.name)
    try:
        values = values.cast(column.type)
    except pa.ArrowInvalid as error:
        raise NotAnExample(f"feature {column.name!r}: {error}") from error
    return _list(values, counts, column) if column.is_array else _scalar(values, counts, column)


def _list(values: pa.Array, counts: Ints, column: Column) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum(np.maximum(counts, 0)))).astype(np.int32)
    missing = counts < 0
    mask = pa.array(missing) if missing.any() else None
    return pa.ListArray.from_arrays(offsets, values, type=column.arrow_type, mask=mask)


def _scalar(values: pa.Array, counts: Ints, column: Column) -> pa.Array:
    if (counts > 1).any():
        raise NotAnExample(
            f"feature {column.name!r} has {counts.max()} values in a record; expected one. Pass "
            f"a schema in which it is an array of {column.type}"
        )
    if (counts == 1).all():
        return values
    return values.take(pa.array(np.cumsum(counts == 1) - 1, mask=counts != 1))
