"""The fingerprint of a DataFrame depends on its rows, not on their order."""

import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkdl.data.dataframe.inputs import DataFrameInputs
from sparkdl.runner.pipeline.fingerprint import fingerprints
from sparkdl.runs.differences import compare_fingerprints

pytestmark = pytest.mark.slow


def test_fingerprints_of_dataframes(spark: SparkSession) -> None:
    def prints(frame: DataFrame, counts: bool = True) -> dict[str, dict[str, object]]:
        return fingerprints(DataFrameInputs.of(frame, spark, 1), counts)

    rows = [(i, float(i), [1.0, 2.0], f"name {i}", None) for i in range(50)]
    schema = "id long, x double, v array<double>, `the name` string, n double"
    frame = spark.createDataFrame(rows, schema)
    first = prints(frame)
    assert first["train"]["rows"] == 50
    assert prints(frame.repartition(7))["train"] == first["train"]
    for other, subject in (
        (spark.createDataFrame([*rows[:-1], (49, 0.5, *rows[-1][2:])], schema), "hash"),
        (frame.unionAll(frame.limit(1)), "rows"),
        (frame.drop("n"), "schema"),
    ):
        changed = next(compare_fingerprints(first, prints(other)))
        assert changed.subject == f"data train, {subject}"
    # Without a request, Spark computes no row.
    assert prints(frame, counts=False) == {"train": {"schema": first["train"]["schema"]}}
    assert list(compare_fingerprints(first, prints(frame.limit(1), counts=False))) == []
    assert prints(frame.limit(0))["train"]["rows"] == 0
    # A value in another column, and an element in another array.
    for schema, row, other_row in (
        ("a string, `b`` c` string", (None, "x"), ("x", None)),
        ("a array<int>, `b`` c` array<int>", ([1], [2]), ([1, 2], [])),
        ("a array<int>, `b`` c` array<int>", ([1], None), (None, [1])),
    ):
        one, two = (spark.createDataFrame([r], schema) for r in (row, other_row))
        assert prints(one)["train"]["hash"] != prints(two)["train"]["hash"]
