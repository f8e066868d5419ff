"""Runs anywhere (pure). The identity of rows: a hash of the values of each row.

Equal rows have equal hashes in every process, batch and run. Values are equal as in Spark's
groupings: NaN equals NaN, and -0.0 equals 0.0, whose sign may depend on the order in which Spark
has aggregated. That two of n different rows have equal hashes has the probability n^2 / 2^65, which
is 3e-6 for ten million rows.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Words = np.ndarray[Any, np.dtype[np.uint64]]

# Rows are hashed in parts of this size, whose intermediate results stay in the cache of a core.
PART_BYTES = 1 << 19

# The fractional parts of the square roots of 2, 3 and 5: numbers without a pattern.
_STEP = np.uint64(0x6A09E667F3BCC909)
_LENGTH = np.uint64(0xBB67AE8584CAA73B)
_NULL = np.uint64(0x3C6EF372FE94F82B)


def row_hashes(batch: pa.RecordBatch) -> Words:
    """Return an array (rows,) with a hash of each row.

    Args:
        batch: the rows.

    Example:
        >>> batch = pa.record_batch({"x": [1, 2, 1], "tags": [["a"], [], ["a"]]})
        >>> hashes = row_hashes(batch)
        >>> hashes[0] == hashes[2], hashes[0] == hashes[1]
        (np.True_, np.False_)
    """
    rows = batch.num_rows
    step = max(PART_BYTES * rows // max(batch.nbytes, 1), 1)
    parts = [_hashes(batch.slice(begin, step)) for begin in range(0, rows, step)]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _hashes(batch: pa.RecordBatch) -> Words:
    return _combined(batch.num_rows, map(_words, batch.columns))


def _combined(rows: int, columns: Iterable[Words]) -> Words:
    hashes: Words = np.zeros(rows, np.uint64)
    for words in columns:
        hashes = _mixed(hashes + words + _STEP)
    return hashes


def _mixed(words: Words) -> Words:
    """Mix the bits of each word, in place: the finalizer of SplitMix64, which loses none.

    Source: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _words(values: pa.Array) -> Words:
    """Return 64 bits for each value; equal for equal values."""
    kind = values.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        words = _words_of_lists(values)
    elif types.is_primitive(kind):
        words = _words_of_numbers(values)
    elif types.is_decimal(kind):
        halves = _fixed_width(values, 2).reshape(-1, 2)
        words = _combined(len(values), halves.T)
    else:
        words = _words_of_bytes(values)
    if values.null_count:  # Any value may lie below a null.
        words = np.where(pc.is_null(values).to_numpy(zero_copy_only=False), _NULL, words)
    return words


def _words_of_numbers(values: pa.Array) -> Words:
    kind = values.type
    if types.is_boolean(kind):  # Bits.
        return _fixed_width(values.cast(pa.uint8()))
    if not types.is_floating(kind):
        return _fixed_width(values)
    floats = _buffer(values, np.dtype(kind.to_pandas_dtype())) + kind.to_pandas_dtype()(0)
    floats[np.isnan(floats)] = np.nan
    words: Words = floats.view(f"u{floats.itemsize}").astype(np.uint64)
    return words


def _fixed_width(values: pa.Array, num_words: int = 1) -> Words:
    width = values.type.bit_width // 8 // num_words
    words: Words = _buffer(values, np.dtype(f"<u{width}"), num_words).astype(np.uint64, copy=False)
    return words


def _buffer(values: pa.Array, dtype: "np.dtype[Any]", per_value: int = 1) -> "np.ndarray[Any, Any]":
    """Return the memory of values of a fixed width, whatever lies below nulls."""
    if not len(values):
        return np.empty(0, dtype)
    offset = values.offset * per_value * dtype.itemsize
    return np.frombuffer(values.buffers()[1], dtype, len(values) * per_value, offset)


def _words_of_bytes(values: pa.Array) -> Words:
    from pandas.util import hash_array  # SipHash, in C. Loading pandas takes time.

    binary = values if types.is_large_binary(values.type) else values.cast(pa.binary())
    words: Words = hash_array(binary.to_numpy(zero_copy_only=False), categorize=False)
    return words


def _words_of_lists(values: pa.Array) -> Words:
    lengths = pc.list_value_length(values).fill_null(0).to_numpy().astype(np.int64)
    items = _words(values.flatten())  # Without what lies below nulls.
    ends = np.cumsum(lengths)
    begins = ends - lengths
    places = (np.arange(len(items)) - np.repeat(begins, lengths)).astype(np.uint64)
    # A sum over each list, as a difference of sums; both may exceed 64 bits.
    sums = np.zeros(len(items) + 1, np.uint64)
    np.cumsum(_mixed(items + places * _STEP), out=sums[1:])
    return _mixed(sums[ends] - sums[begins] + lengths.astype(np.uint64) * _LENGTH)
