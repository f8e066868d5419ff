"""Files whose columns have other types in Arrow, and equal or comparable ones in Parquet."""

import itertools
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkdl.data.readers.parquet import parquet
from sparkdl.data.schema import UnsupportedType
from sparkdl.errors import ConfigError

ALIKE = {
    "text": [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
    "bytes": [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int16(), pa.binary()),
    ],
    "numbers": [pa.int64(), pa.dictionary(pa.int8(), pa.int64())],
    "lists": [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2)],
    "nested": [pa.list_(pa.list_(pa.int64(), 2), 2), pa.large_list(pa.list_(pa.int64()))],
}
VALUES: dict[str, list[Any]] = {
    "text": ["a", "ü"],
    "bytes": [b"\0\1", b""],
    "numbers": [2**60 + 1, -3],
    "lists": [[0.5, 1.5], [2.5, 3.5]],
    "nested": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
}


def pairs() -> Iterator[Any]:
    for name, kinds in ALIKE.items():
        for first, second in itertools.permutations([*kinds, pa.null()], 2):
            yield pytest.param(name, first, second, id=f"{name}-{first}-{second}")


def write(folder: Path, *columns: pa.Array) -> None:
    folder.mkdir()
    for number, column in enumerate(columns):
        ids = range(2 * number, 2 * number + len(column))
        pq.write_table(pa.table({"id": ids, "x": column}), folder / f"{number}.parquet")


def read(folder: Path, **options: Any) -> list[Any]:
    """The values of `x` of all rows, in order."""
    loader = parquet(folder, feature_cols="x", batch_size_per_worker=3, **options).as_numpy()
    return [value for batch in loader for value in batch.tolist()]


@pytest.mark.parametrize(("name", "first", "second"), list(pairs()))
def test_types_that_parquet_stores_alike_are_read_together(
    name: str, first: pa.DataType, second: pa.DataType, tmp_path: Path
) -> None:
    values, kinds = VALUES[name], (first, second)
    write(tmp_path / "p", *[pa.array([None] * 2 if k == pa.null() else values, k) for k in kinds])
    expected = values * 2
    options: dict[str, Any] = {}
    if pa.null() in kinds:
        with pytest.raises(ValueError, match=r"column 'x' has [12] nulls among"):
            read(tmp_path / "p")
        expected, options = values, {"where": {"x": lambda x: np.ones(len(x), bool)}}
    assert read(tmp_path / "p", **options) == expected
    if name in ("text", "bytes", "numbers"):
        chosen = [("x", "!=", values[0])]
        assert read(tmp_path / "p", filter=chosen) == expected[1::2]


def test_other_types_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "p", pa.array([1], pa.int64()), pa.array([1], pa.int32()))
    with pytest.raises(ValueError, match=r"1.parquet: column 'x' is int32; in .* int64"):
        read(tmp_path / "p")
    write(tmp_path / "q", pa.array([[1]], pa.list_(pa.int64())), pa.array([1], pa.int64()))
    with pytest.raises(ValueError, match=r"'x' is int64; in .*0.parquet it is list<"):
        read(tmp_path / "q")


def test_a_column_that_is_null_in_all_files_is_named_with_them(tmp_path: Path) -> None:
    write(tmp_path / "p", pa.nulls(2), pa.nulls(1))
    with pytest.raises(UnsupportedType, match=r"/p: column 'x' is null in all rows"):
        read(tmp_path / "p")
    rows = parquet(tmp_path / "p", feature_cols="id", batch_size_per_worker=8).as_numpy()
    assert [batch.tolist() for batch in rows] == [[0, 1, 2]]


@pytest.mark.parametrize(
    "interval", ["interval '1' day", "interval '1' month", "interval '1:02' minute to second"]
)
def test_an_interval_of_spark_is_refused_as_in_spark_mode(
    interval: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark stores it as an integer, whose unit a model would not know."""
    spark.sql(f"SELECT 1 AS id, {interval} AS x").write.parquet(str(tmp_path / "p"))
    with pytest.raises(UnsupportedType, match="/p: column 'x' is an interval"):
        read(tmp_path / "p")
    rows = parquet(tmp_path / "p", feature_cols="id", batch_size_per_worker=1).as_numpy()
    assert [batch.tolist() for batch in rows] == [[1]]


def test_a_name_that_two_columns_have_is_refused(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["x", "x", "id"])
    pq.write_table(twice, tmp_path / "p")
    for options in ({}, {"feature_cols": "x"}, {"feature_cols": "id", "filter": [("x", "=", 1)]}):
        with pytest.raises(ValueError, match=r"/p has two columns 'x'"):
            list(parquet(tmp_path / "p", batch_size_per_worker=1, **options).as_numpy())
    rows = parquet(tmp_path / "p", feature_cols="id", batch_size_per_worker=1).as_numpy()
    assert [batch.tolist() for batch in rows] == [[3]]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_filter_with_a_time_of_another_kind_says_what_to_write(
    zone: str | None, tmp_path: Path
) -> None:
    write(tmp_path / "p", pa.array([0, 10**15], pa.timestamp("us", zone)))
    naive = datetime(1980, 1, 1)
    aware = naive.replace(tzinfo=timezone.utc)
    right, wrong = (aware, naive) if zone else (naive, aware)
    assert read(tmp_path / "p", filter=[("x", ">", right)]) == [10**15]
    for value in (wrong, 5):
        with pytest.raises(ConfigError, match=r"A datetime has a time zone if .* 'x' is timestamp"):
            read(tmp_path / "p", filter=[("x", ">", value)])
