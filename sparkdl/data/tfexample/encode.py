"""Runs anywhere. Serialize Arrow batches as `tf.train.Example`s, without TensorFlow.

An Example is a map from names to features; a feature is a list of bytes, of floats or of int64.
Source of the messages: `tensorflow/core/example/example.proto` and `feature.proto`. Source of the
encoding: https://protobuf.dev/programming-guides/encoding. Whole columns are encoded at once.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from sparkdl.data.exact_numbers import first_inexact
from sparkdl.data.tfexample.columns import Column, Kind

# The first byte of a length-delimited field: 8 * field number + 2.
FIELD_1, FIELD_2 = b"\x0a", b"\x12"
_LIST = {kind: bytes([8 * kind + 2]) for kind in Kind}


def varint(number: int) -> bytes:
    """Encode a number of at least 0 in groups of 7 bits, lowest group first.

    Example:
        >>> varint(300)
        b'\\xac\\x02'
    """
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def varints(numbers: "np.ndarray[Any, Any]") -> tuple[bytes, "np.ndarray[Any, Any]"]:
    """Encode int64s like `varint`, negative numbers as number + 2**64.

    Returns:
        The joined bytes, and the length of each encoded number.

    Example:
        >>> data, lengths = varints(np.array([1, -1, 300]))
        >>> data.hex(" "), lengths.tolist()
        ('01 ff ff ff ff ff ff ff ff ff 01 ac 02', [1, 10, 2])
    """
    unsigned = numbers.astype(np.int64).view(np.uint64)
    lengths = np.ones(len(unsigned), np.int64)
    for bits in range(7, 64, 7):
        lengths += unsigned >= np.uint64(1 << bits)
    places = np.arange(lengths.max(initial=1), dtype=np.uint64)
    groups = (unsigned[:, None] >> places * np.uint64(7)).astype(np.uint8) & 0x7F
    groups[places < lengths[:, None] - 1] |= 0x80
    return groups[places < lengths[:, None]].tobytes(), lengths


def _prefix(name: str, kind: Kind) -> Callable[[int], bytes]:
    """Return a function from the length of a list's content to the bytes that precede it.

    These bytes are the headers of the map entry, of the feature and of the list.
    """
    key = name.encode()
    key = FIELD_1 + varint(len(key)) + key + FIELD_2
    prefixes: dict[int, bytes] = {}

    def prefix(length: int) -> bytes:
        if length not in prefixes:
            # Numbers are packed into one field; each bytes value has a field of its own.
            is_packed = kind is not Kind.BYTES and length > 0
            head = FIELD_1 + varint(length) if is_packed else b""
            head = _LIST[kind] + varint(len(head) + length) + head
            head = key + varint(len(head) + length) + head
            prefixes[length] = FIELD_1 + varint(len(head) + length) + head
        return prefixes[length]

    return prefix


def _values(array: pa.Array, column: Column) -> tuple[bytes, "np.ndarray[Any, Any]"]:
    """Return all encoded values, joined, and the length of each."""
    if array.null_count:
        raise ValueError(
            f"column {column.name!r} has an array with a null in it; a TFRecord cannot store nulls "
            "in arrays. Fill or remove the nulls first, for example with "
            "pyspark.sql.functions.array_compact."
        )
    if column.kind is Kind.INT64:
        return varints(array.cast(pa.int64()).to_numpy())
    if column.kind is Kind.FLOAT:
        floats = _single(array, column.name).astype("<f4", copy=False)
        return floats.tobytes(), np.full(len(floats), 4)
    values = array.cast(pa.large_binary()).to_pylist()
    heads = [FIELD_1 + varint(len(value)) for value in values]
    lengths = [len(head) + len(value) for head, value in zip(heads, values, strict=True)]
    joined = b"".join(part for pair in zip(heads, values, strict=True) for part in pair)
    return joined, np.array(lengths, np.int64)


def _single(array: pa.Array, name: str) -> "np.ndarray[Any, Any]":
    """Return floats as float32, which are the only floats of a TFRecord."""
    values: np.ndarray[Any, Any] = array.to_numpy()
    if (value := first_inexact(values, np.float32)) is not None:
        raise ValueError(
            f"column {name!r} has {value}, for which float32 has no finite number: a TFRecord "
            "stores float32. Scale the column, for example by its logarithm."
        )
    return values.astype(np.float32)


def _starts(lengths: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    return np.concatenate(([0], np.cumsum(lengths)))


def _entries(array: pa.Array, column: Column) -> Any:
    """Return the entry of each row in its Example's map; empty if the row is null.

    Entries of equal length are the rows of a matrix of bytes; otherwise they are a list of bytes.
    """
    counts = array.is_valid().cast(pa.int64())
    if column.is_array:
        counts = compute.fill_null(compute.list_value_length(array), 0)
    # `.values` would ignore the slice's offset and include the values below null lists.
    data, lengths = _values(array.flatten() if column.is_array else array.drop_null(), column)
    starts = _starts(lengths)[_starts(counts.to_numpy())]
    prefix = _prefix(column.name, column.kind)
    rows = len(array)
    length = starts[1] if len(array) else 0
    if not array.null_count and (np.diff(starts) == length).all():
        head = np.tile(np.frombuffer(prefix(int(length)), np.uint8), (rows, 1))
        return np.hstack([head, np.frombuffer(data, np.uint8).reshape(rows, length)])
    entries = [prefix(b - a) + data[a:b] for a, b in pairwise(starts.tolist())]
    valid = array.is_valid().to_pylist()
    return [entry if is_valid else b"" for entry, is_valid in zip(entries, valid, strict=True)]


def encode(batch: pa.RecordBatch, columns: Sequence[Column]) -> list[bytes]:
    """Serialize the rows of a batch as Examples.

    Args:
        batch: the rows; the Arrow types can be cast to the kinds of the features.
        columns: the columns and their features, see `columns_of`.

    Raises:
        ValueError: if an array has a null in it, or float32 has no finite number for a double.

    Example:
        >>> batch = pa.RecordBatch.from_pydict({"id": [7, None]})
        >>> encode(batch, [Column("id", Kind.INT64, pa.int64())])
        [b'\\n\\r\\n\\x0b\\n\\x02id\\x12\\x05\\x1a\\x03\\n\\x01\\x07', b'\\n\\x00']
    """
    entries = [_entries(batch.column(column.name), column) for column in columns]
    if not batch.num_rows:
        return []
    parts = [entry for entry in entries if isinstance(entry, list)]
    if matrices := [entry for entry in entries if not isinstance(entry, list)]:
        joined = np.hstack(matrices)
        parts.append(joined.view(f"V{joined.shape[1]}").ravel().tolist())
    features = map(b"".join, zip(*parts, strict=True))
    return [FIELD_1 + varint(len(feature)) + feature for feature in features]
