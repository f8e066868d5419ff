"""One table of Spark's types, written by Spark in each format: the same values, or a refusal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from sparkdl import data
from sparkdl.data.schema import UnsupportedType, arrow_type

pytestmark = pytest.mark.slow

# SQL of a value of each type, by the name of its column.
VALUES = {
    "byte": "cast(-7 as tinyint)",
    "short": "cast(300 as smallint)",
    "int": "cast(-70000 as int)",
    "long": "9007199254740993L",
    "float": "cast(0.1 as float)",
    "double": "double('-0.1')",
    "nan": "double('NaN')",
    "flag": "true",
    "decimal": "cast(1.25 as decimal(9, 2))",
    "text": "'a\"b, \\\\\\\\ ü'",
    "day": "date'1582-10-04'",
    "time": "timestamp'2024-01-31 10:20:30.123'",
    "time_ntz": "timestamp_ntz'1969-12-31 23:59:59.999'",
    "bytes": "cast('ab' as binary)",
    "array": "array(1, 2)",
    "struct": "named_struct('a', 1)",
    "map": "map('a', 1)",
    "days": "interval '3' day",
    "months": "interval '2' month",
    "big": "cast(1.25 as decimal(38, 2))",
}
# CSV has no types but those of texts.
AS_TEXT = ("bytes", "array", "struct", "map", "days", "months")
NO_TFRECORD = ("day", "time", "time_ntz", "decimal", "struct", "map", "days", "months", "big")


def first(rows: Any) -> Any:
    (batch,) = rows.as_numpy()
    return batch


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_the_same_in_each_format(spark: SparkSession, tmp_path: Path, name: str) -> None:
    df = spark.sql(f"select {VALUES[name]} x")
    path = str(tmp_path / "t")
    df.write.parquet(path)
    try:
        arrow_type(df.schema["x"].dataType)
        is_refused = name == "big"
    except UnsupportedType:
        is_refused = True
    if is_refused:
        with pytest.raises(TypeError, match="'x'"):
            data.parquet(path, batch_size_per_worker=1)
        with pytest.raises((TypeError, ValueError), match="x"), data.local(df):
            data.dataset(batch_size_per_worker=1)
        return
    expected = first(data.parquet(path, batch_size_per_worker=1))
    with data.local(df):
        found = first(data.dataset(batch_size_per_worker=1))
    assert found.dtype == expected.dtype and repr(found) == repr(expected)
    if name not in NO_TFRECORD:
        data.write_tfrecord(df, f"{path}r")
        found = first(data.tfrecord(f"{path}r", batch_size_per_worker=1))
        as_record = {"b": "int64", "i": "int64", "f": "float32"}.get(expected.dtype.kind)
        wanted = expected.astype(as_record) if as_record else expected
        if name == "text":
            found = np.array([value.decode() for value in found], object)
        assert repr(found) == repr(wanted)
    if name not in AS_TEXT:
        df.write.csv(f"{path}c", header=True)
        kind = {"float": {"x": "float32"}, "decimal": {"x": "float64"}}.get(name, {})
        found = first(data.csv(f"{path}c", schema=kind, escape="\\", batch_size_per_worker=1))
        assert found.dtype.kind == expected.dtype.kind
        assert repr(found.tolist()) == repr(expected.tolist())
