"""Columns of arrays, whose elements are features each, compared with NumPy."""

import logging
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sparkdl import profiles
from sparkdl.errors import ConfigError
from sparkdl.profiles.elements import WHOLE, Choice, names_of
from sparkdl.profiles.summary import SUMMARY_SCHEMA, Summarizer, Summary, add_columns, add_summaries

Row = list[float | None] | None
Summaries = tuple[int | None, dict[int, Summary]]


def summarised(parts: list[list[Row]], choice: Choice = 100) -> Summaries:
    """The size and the summaries of a column whose rows are in several tasks."""
    rows = []
    for part in parts:
        # Several batches, one of them a slice.
        column = pa.array([None, *part], pa.list_(pa.float64())).slice(1)
        middle = len(part) // 2
        batches = [
            pa.RecordBatch.from_arrays([c], ["c0"]) for c in (column[:middle], column[middle:])
        ]
        rows += [row for batch in Summarizer((choice,))(batches) for row in batch.to_pylist()]
    sums = []
    for key in sorted({row["key"] for row in rows}):
        table = pa.Table.from_pylist([r for r in rows if r["key"] == key], SUMMARY_SCHEMA)
        sums += add_summaries(table, 1 << 14).to_pylist()
    ((size, summaries),) = add_columns(sums, [choice], 1 << 14)
    return size, summaries


def counted(summary: Summary) -> tuple[int, int, int, int]:
    return summary.n, summary.nulls, summary.moments.num_values, summary.moments.nans


def test_elements_are_summarised_with_null_arrays_null_elements_and_nan() -> None:
    first: list[Row] = [[1.0, None, 7.0], None, [2.0, math.nan, 7.0], [3.0, math.inf, 7.0]]
    size, found = summarised([first, [None, None], [[4.0, 1.0, 7.0]], []])
    assert (size, list(found)) == (3, [0, 1, 2])
    assert [counted(found[i]) for i in range(3)] == [(7, 3, 4, 0), (7, 4, 3, 1), (7, 3, 4, 0)]
    assert found[0].values.values().tolist() == [1.0, 2.0, 3.0, 4.0]
    assert found[1].values.values().tolist() == [1.0, math.inf]
    assert (found[2].moments.mean, found[2].values.counts.tolist()) == (7.0, [4])


@pytest.mark.parametrize("choice", [100, 2, (1,), 0])
@pytest.mark.parametrize(
    "parts",
    [
        [[[1.0, 2.0, 3.0], [4.0, 5.0]], [[6.0, 7.0, 8.0]]],
        [[[1.0, 2.0, 3.0]], [[4.0, 5.0]], [None], [[6.0, 7.0, 8.0]]],
        [[[1.0, 2.0, 3.0], [6.0, 7.0, 8.0], [], [4.0, 5.0]]],
    ],
)
def test_arrays_of_different_lengths_are_one_distribution(
    parts: list[list[Row]], choice: Choice
) -> None:
    size, found = summarised(parts, choice)
    assert size is None and list(found) == [WHOLE]
    assert found[WHOLE].values.values().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert found[WHOLE].n == sum(map(len, parts)) and found[WHOLE].moments.mean == 4.5


@pytest.mark.parametrize(("choice", "elements"), [(2, [0, 3]), ((2, 1), [1, 2]), (0, [])])
def test_long_arrays_are_some_elements_and_the_whole(choice: Choice, elements: list[int]) -> None:
    size, found = summarised([[[1.0, 2.0, 3.0, 4.0]], [[5.0, 6.0, 7.0, 8.0], None]], choice)
    assert (size, list(found)) == (4, [WHOLE, *elements])
    assert found[WHOLE].values.values().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(found[i].values.values().tolist() == [i + 1, i + 5] for i in elements)


@pytest.mark.parametrize("rows", [[None, None], [], [[], []]])
def test_columns_without_elements_have_a_profile(rows: list[Row]) -> None:
    size, found = summarised([rows])
    assert (size, list(found), found[WHOLE].n) == (0, [WHOLE], len(rows))


def test_names_of_spark_ml_are_used_if_each_element_has_another_one() -> None:
    def metadata(*names: str, num: int = 2) -> dict[str, Any]:
        attributes = [{"idx": i, "name": name} for i, name in enumerate(names)]
        return {
            "ml_attr": {
                "attrs": {"numeric": attributes[:1], "binary": attributes[1:]},
                "num_attrs": num,
            }
        }

    assert names_of("v", 2, metadata("age", "paid")) == ["v[age]", "v[paid]"]
    assert names_of("v", 2, metadata("age")) == ["v[age]", "v[1]"]
    for other in (
        {},
        metadata("age", "age"),
        metadata("age", num=3),
        {"ml_attr": {"num_attrs": 2}},
    ):
        assert names_of("v", 2, other) == ["v[0]", "v[1]"]


@pytest.mark.slow
def test_the_profile_of_an_element_is_that_of_a_column(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    values = np.random.default_rng(5).lognormal(size=(600, 3)) * [1, 10, 100]
    columns = ["age", "a.b", "income"]
    rows = spark.createDataFrame([tuple(map(float, row)) for row in values], columns)
    plain = [F.col(f"`{name}`") for name in columns]
    frame = rows.select(*plain, F.array(*plain).alias("array"))
    frame = VectorAssembler(inputCols=["age", "income"], outputCol="v").transform(frame)
    found = profiles.profile(frame.repartition(3))["features"]
    names = [*columns, "array[0]", "array[1]", "array[2]", "v[age]", "v[income]"]
    assert list(found) == names and not caplog.records
    for name, column in zip(names[3:], [*columns, "age", "income"], strict=True):
        assert {part: found[name][part] for part in found[column]} == found[column]
    place = {"column": "v", "element": 1, "size": 2}
    assert {part: found["v[income]"][part] for part in place} == place

    with caplog.at_level(logging.WARNING, "sparkdl.profiles"):
        some = profiles.profile(frame, ["array"], elements={"array": [2]})["features"]
        mixed = frame.selectExpr("IF(age > 1, array, slice(array, 1, 2)) AS m")
        varying = profiles.profile(mixed)["features"]["m"]
    assert list(some) == ["array", "array[2]"]
    assert some["array"]["num_values"] == 1800 and some["array[2]"] == found["array[2]"]
    assert varying["num_values"] == 1200 + (values[:, 0] > 1).sum() and varying["size"] is None
    long, short = (record.getMessage() for record in caplog.records)
    assert "of the 3 elements of 'array', 1 are compared each (2); the other 2 are" in long
    assert "'m' has arrays of different lengths" in short
    for elements, message in (
        ({"array": [3]}, "has 3 for the column 'array', whose"),
        (-1, "has -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            profiles.profile(frame, ["array"], elements=elements)
    with pytest.raises(ConfigError, match=r"'v\[age\]' is the name of a column and of an element"):
        profiles.profile(frame.select("v", F.col("age").alias("v[age]")))
