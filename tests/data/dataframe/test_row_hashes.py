"""The identity of rows: equal rows, and only these, have equal hashes in any batch and process."""

import itertools
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data.dataframe.row_hashes import row_hashes

NAN = float("nan")
# All types that arrive from Spark and RDDs, with values that differ from each other.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [None, 0, 1, -1, 127],
    pa.int64(): [None, 0, 1, -1, 2**63 - 1, -(2**63)],
    pa.float32(): [None, 0.0, 1.0, -1.0, NAN, float("inf")],
    pa.float64(): [None, 0.0, 0.1, -0.1, NAN, float("inf"), 5e-324],
    pa.bool_(): [None, True, False],
    pa.string(): [None, "", "a", "b", "ab", "ö", "None", "nan"],
    pa.large_string(): [None, "", "a", "ab"],
    pa.binary(): [None, b"", b"\0", b"\0\0", b"a"],
    pa.binary(2): [None, b"\0\0", b"\0a", b"a\0"],
    pa.date32(): [None, date(1970, 1, 1), date(1969, 12, 31)],
    pa.timestamp("us", "UTC"): [None, datetime(1970, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 1)],
    pa.decimal128(12, 2): [None, Decimal("0.00"), Decimal("0.01"), Decimal("-0.01")],
    pa.list_(pa.int32()): [None, [], [0], [None], [0, 0], [0, 1], [1, 0], [0, None]],
    pa.list_(pa.float32(), 2): [None, [0.0, 1.0], [1.0, 0.0], [0.0, NAN], [0.0, None]],
    pa.large_list(pa.string()): [None, [], [""], [None], ["", ""], ["a", "b"], ["ab"], ["b", "a"]],
    pa.list_(pa.list_(pa.int8())): [
        None,
        [],
        [[]],
        [None],
        [[], []],
        [[1], [2]],
        [[1, 2]],
        [[], [1, 2]],
    ],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_values_of_all_types_are_told_apart_wherever_they_lie(kind: pa.DataType) -> None:
    column = pa.array(VALUES[kind], kind)
    hashes = row_hashes(pa.record_batch({"x": column}))
    assert hashes.dtype == np.uint64
    assert len(set(hashes.tolist())) == len(column)
    many = pa.concat_arrays([column] * 5)
    for start, length in itertools.product(range(len(column) + 2), (0, 1, 3, 9)):
        part = row_hashes(pa.record_batch({"x": many.slice(start, length)}))
        assert part.tolist() == np.tile(hashes, 5)[start : start + length].tolist()
    # The same values in memory of their own.
    backwards = row_hashes(pa.record_batch({"x": column.take(pa.array(range(len(column)))[::-1])}))
    assert backwards.tolist() == hashes[::-1].tolist()


def test_what_lies_below_nulls_does_not_count() -> None:
    valid = pa.py_buffer(b"\x05")  # The second of three values is null.
    pairs = []
    for below in (1, 7):
        numbers = pa.py_buffer(np.array([3, below, 4], "int32"))
        texts = pa.py_buffer(b"a" * 3 + b"b" * below)
        offsets = pa.py_buffer(np.array([0, 3, 3 + below, 3 + below], "int32"))
        items = pa.array([1.0, 2.0, 3.0, *[float(below)] * below], pa.float32())
        pairs.append(
            pa.record_batch(
                {
                    "number": pa.Array.from_buffers(pa.int32(), 3, [valid, numbers]),
                    "text": pa.Array.from_buffers(pa.string(), 3, [valid, offsets, texts]),
                    "list": pa.Array.from_buffers(
                        pa.list_(pa.float32()), 3, [valid, offsets], children=[items]
                    ),
                    "fixed": pa.FixedSizeListArray.from_arrays(
                        pa.array([1.0, float(below), 2.0]), 1, mask=pa.array([False, True, False])
                    ),
                }
            )
        )
    first, second = map(row_hashes, pairs)
    assert first.tolist() == second.tolist()
    assert len(set(first.tolist())) == 3


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.list_(pa.float32())], ids=str)
def test_zeros_are_equal_and_so_are_all_nans(kind: pa.DataType) -> None:
    values = np.array([0.0, -0.0, NAN, -NAN])
    values.view(np.uint64)[2] |= np.uint64(12345 << 32)  # Another payload.
    column = pa.array(values).cast(pa.float32() if pa.types.is_list(kind) else kind)
    if pa.types.is_list(kind):
        column = pa.ListArray.from_arrays(pa.array(range(5), pa.int32()), column)
    hashes = row_hashes(pa.record_batch({"x": column})).tolist()
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]


def test_columns_are_not_exchanged_and_large_batches_hash_in_parts() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": [2, 1], "c": ["x", "x"]})
    assert len(set(row_hashes(batch).tolist())) == 2
    ids = np.arange(200_000)
    wide = pa.record_batch({"id": ids, "x": ids / 3, "text": np.char.mod("%d", ids)})
    hashes = row_hashes(wide)
    assert len(np.unique(hashes)) == len(ids)
    assert hashes[123_456:123_459].tolist() == row_hashes(wide.slice(123_456, 3)).tolist()
    # Every bit is set in half of the hashes.
    bits = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
    assert abs(bits - 0.5).max() < 0.01


def test_hashes_are_those_of_lists_that_were_written_before() -> None:
    """A restart may have other versions of Python, pyarrow, NumPy and pandas."""
    batch = pa.record_batch({"id": [7, None], "x": [[0.5, None], []], "text": ["ö", ""]})
    hashes = [f"{value:016x}" for value in row_hashes(batch).tolist()]
    assert hashes == ["e887da5114142988", "5695589430bfdd3c"]
