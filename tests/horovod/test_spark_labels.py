"""The precision of labels, as NumPy has it."""

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

from sparkdl.horovod.spark.keras.labels import with_single_precision

NUMBERS = [0.1, -3.4028234663852886e38, 1e-50, float("inf")]


def test_doubles_become_floats(spark: SparkSession) -> None:
    df = spark.createDataFrame([(NUMBERS[0], NUMBERS, Vectors.dense(NUMBERS))], ["a", "b", "c"])
    for name in "abc":
        df = with_single_precision(df, name)
    row = df.first()
    assert row is not None
    expected = [float(np.float32(number)) for number in NUMBERS]
    assert (row.a, row.b, row.c) == (expected[0], expected, expected)


@pytest.mark.parametrize("kind", ["double", "array", "vector"])
def test_a_number_that_is_too_large_is_an_error(kind: str, spark: SparkSession) -> None:
    number = -1e39
    value = {"double": number, "array": [0.0, number], "vector": Vectors.dense([number])}[kind]
    df = spark.createDataFrame([(value,)], ["y"])
    with pytest.raises(PySparkException, match=r"(?s)the label y is .*-1\.0E39.*3\.4e38"):
        with_single_precision(df, "y").collect()


def test_other_columns_stay_as_they_are(spark: SparkSession) -> None:
    df = spark.createDataFrame([(3, 0.5)], "y int, z float")
    for name in ("y", "z", "absent"):
        assert with_single_precision(df, name).schema == df.schema
