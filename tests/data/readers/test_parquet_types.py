"""Files whose columns have other types in Arrow, and equal or comparable ones in Parquet."""

import itertools
import math
import operator
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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


WIDTHS = [2, 3, None]


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(WIDTHS, 2)))
@pytest.mark.parametrize("inner", [None, 1, 2])
def test_arrays_of_other_lengths_in_each_file_are_read_together(
    first: int | None, second: int | None, inner: int | None, tmp_path: Path
) -> None:
    """A file of a fixed length does not set the length of those that follow."""

    def column(width: int | None) -> pa.Array:
        rows = [[1], [2, 3, 4]] if width is None else [[7] * width, [8] * width]
        if inner is not None:
            rows = [[[value] * (inner if width else 3) for value in row] for row in rows]
        kind = pa.int64() if inner is None else pa.list_(pa.int64(), inner if width else -1)
        return pa.array(rows, pa.list_(kind, -1 if width is None else width))

    columns = [column(first), column(second)]
    write(tmp_path / "p", *columns)
    loader = parquet(tmp_path / "p", feature_cols="x", ragged=["x"], batch_size_per_worker=3)
    found = [row for batch in loader for row in batch.to_list()]
    assert found == [row for values in columns for row in values.to_pylist()]


def test_dictionaries_have_room_for_the_values_of_all_files(tmp_path: Path) -> None:
    texts = [str(number) for number in range(300)]
    kind = pa.dictionary(pa.int8(), pa.string())
    write(tmp_path / "p", pa.array(texts[:2], kind), pa.array(texts))
    assert read(tmp_path / "p") == texts[:2] + texts
    # The lists of a dictionary type.
    lists = pa.array([[text] for text in texts])
    small = pa.array([["a"], ["b"]], pa.list_(kind))
    write(tmp_path / "q", small, lists)
    assert read(tmp_path / "q") == [["a"], ["b"], *([text] for text in texts)]


FAR = 10**17  # Microseconds: the year 5138, which nanoseconds do not have.
TIMES = {"ms": [1_000, -5_000], "us": [1_001, FAR + 1], "ns": [3, -4], "int96": [7, FAR + 3]}


@pytest.mark.parametrize(
    ("units", "zone"),
    [
        (units, zone)
        for units in itertools.permutations(TIMES, 2)
        for zone in (None, "UTC")
        if zone is None or "int96" not in units
    ],
)
def test_times_of_other_units_keep_their_values(
    units: tuple[str, str], zone: str | None, tmp_path: Path
) -> None:
    """Oracle: pyarrow reads each file alone, and Python compares."""
    (tmp_path / "p").mkdir()
    for number, unit in enumerate(units):
        is_int96 = unit == "int96"
        kind = pa.timestamp("us" if is_int96 else unit, None if is_int96 else zone)
        values = TIMES[unit] if unit != "ns" else [value * 1_000 for value in TIMES[unit]]
        values = values if unit != "ms" else [value // 1_000 for value in values]
        table = pa.table({"x": pa.array(values, kind)})
        path = tmp_path / "p" / f"{number}.parquet"
        pq.write_table(table, path, use_deprecated_int96_timestamps=is_int96)
    expected = [value for unit in units for value in TIMES[unit]]
    assert read(tmp_path / "p") == expected
    for limit in (0, *(value for value in expected[::2] if value < FAR)):
        time = pa.scalar(limit, pa.timestamp("us", zone))
        for sign, passes in ((">=", int.__ge__), ("<=", int.__le__)):
            if wanted := [value for value in expected if passes(value, limit)]:
                assert read(tmp_path / "p", filter=[("x", sign, time)]) == wanted, (limit, sign)


def test_a_time_that_does_not_fit_is_refused_by_the_name_of_its_column(tmp_path: Path) -> None:
    fine, coarse = pa.array([5, 1_001], pa.timestamp("ns")), pa.array([7], pa.timestamp("us"))
    for name, columns in (("p", (fine, coarse)), ("q", (coarse, fine))):
        write(tmp_path / name, *columns)
        with pytest.raises(ValueError, match=r"\.parquet.*column 'x' is timestamp\[ns\]"):
            read(tmp_path / name)
        with pytest.raises(ValueError, match=r"\.parquet.*column 'x' is timestamp\[ns\]"):
            read(tmp_path / name, filter=[("x", ">", pa.scalar(0, pa.timestamp("us")))])


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


LARGE = [1, 2**53 + 1, 2**63, 2**63 + 5, 2**64 - 1]
EXACT = [Decimal("-4.00"), Decimal("1.10"), Decimal("2.00"), Decimal("2.20"), Decimal("3.30")]
SIGNS: dict[str, Any] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">=": operator.ge,
    "in": lambda one, others: one in others,
    "not in": lambda one, others: one not in others,
}


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("kind", [pa.uint64(), pa.decimal128(12, 2), pa.decimal128(38, 2)])
def test_filters_of_large_numbers_and_decimals(
    kind: pa.DataType, sign: str, tmp_path: Path
) -> None:
    """Oracle: Python's exact numbers."""
    values = LARGE if kind == pa.uint64() else EXACT
    table = pa.table({"id": range(len(values)), "x": pa.array(values, kind)})
    pq.write_table(table, tmp_path / "p", row_group_size=2)
    compared: list[Any] = [*values, 0, 2, 2.0] if kind == pa.uint64() else [*values, 0, 2]
    for value in compared:
        given = [value, values[0]] if "in" in sign else value
        wanted = [row for row, x in enumerate(values) if SIGNS[sign](x, given)]
        if wanted:
            batches = parquet(
                tmp_path / "p",
                filter=[("x", sign, given)],
                feature_cols="id",
                batch_size_per_worker=9,
            ).as_numpy()
            assert [row for batch in batches for row in batch.tolist()] == wanted, given


def test_a_filter_with_a_number_that_uint64_has_not_names_column_and_value(tmp_path: Path) -> None:
    write(tmp_path / "p", pa.array(LARGE, pa.uint64()))
    for value in (-1, 2**64, 1.5, math.nan):
        for condition in ([("x", ">", value)], [[("x", "in", [1, value])]]):
            with pytest.raises(ConfigError, match=f"column 'x', which is uint64, with {value}"):
                read(tmp_path / "p", filter=condition)
    with pytest.raises(ValueError, match=r"'x' is uint64: in an expression, compare it with"):
        read(tmp_path / "p", filter=pc.field("x") > 1)
    exact = pa.scalar(2**53 + 1, pa.uint64())
    assert read(tmp_path / "p", filter=pc.field("x") > exact) == LARGE[2:]
