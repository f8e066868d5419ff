"""Rows of RDDs as Arrow batches: every value of every row arrives in its column."""

from collections import namedtuple
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from sparkdl.data.dataframe.rdd import RowPacker, schema_of_row

Point = namedtuple("Point", ["x", "y"])


def packed(rows: list[Any]) -> list[dict[str, Any]]:
    schema = schema_of_row("train", rows[0])
    messages = RowPacker(schema.serialize().to_pybytes(), 1)(0, rows)
    batches = [pa.ipc.read_record_batch(pa.py_buffer(message), schema) for _, message in messages]
    return pa.Table.from_batches(batches, schema).to_pylist()


@pytest.mark.parametrize(
    "rows",
    [
        [(1, 2), (3, 4)],
        [Row(_1=1, _2=2), Row(_2=4, _1=3)],
        [{"_1": 1, "_2": 2}, {"_2": 4, "_1": 3}],
        [[1, 2], (3, 4)],
    ],
)
def test_values_arrive_in_their_columns(rows: list[Any]) -> None:
    assert packed(rows) == [{"_1": 1, "_2": 2}, {"_1": 3, "_2": 4}]


def test_named_values_are_not_exchanged() -> None:
    assert packed([Row(a=1, b=2), Row(b=20, a=10), (5, 6)])[1:] == [
        {"a": 10, "b": 20},
        {"a": 5, "b": 6},
    ]
    assert packed([Point(1, 2), Point(y=4, x=3)])[1] == {"x": 3, "y": 4}


def test_a_dict_may_leave_columns_out() -> None:
    assert packed([{"a": 1, "b": 2}, {"b": 3}])[1] == {"a": None, "b": 3}


@pytest.mark.parametrize(
    ("first", "other", "problem"),
    [
        ((1, 2), (3, 4, 5), r"the value \(3, 4, 5\)"),
        ((1, 2), (3,), r"the value \(3,\)"),
        ((1, 2), "ab", "the value 'ab'"),
        (Row(a=1, b=2), Row(a=1, c=2), "the columns a, c"),
        (Row(a=1, b=2), Row(a=1, b=2, c=3), "the columns a, b, c"),
        ({"a": 1}, {"a": 1, "b": 2}, "the columns a, b"),
    ],
)
def test_a_row_unlike_the_first_is_refused(first: Any, other: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=rf"a row of the RDD has {problem}; expected a value for"):
        packed([first, other])
