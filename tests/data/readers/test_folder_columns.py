"""Columns in the names of folders: the types and values that Spark infers, for each reader."""

import itertools
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as arrow_csv
from pyspark.sql import DataFrame, SparkSession

from sparkdl import data
from sparkdl.data import schema
from sparkdl.data.readers.csv_format import CsvFormat
from sparkdl.data.readers.delimited import DelimitedSource
from sparkdl.data.readers.folder_columns import NULL, folder_texts, folder_types, folder_value
from sparkdl.data.readers.parquet import ParquetSource
from sparkdl.data.readers.petastorm.reader import PetastormSource
from sparkdl.data.shard import Range
from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.encode import encode
from sparkdl.data.tfexample.framing import frame
from sparkdl.errors import ConfigError

# Texts of the folders of one table.
TABLES = [
    ["1", "2"],
    ["007", "+5", "-3"],
    ["1", "3000000000"],
    ["99999999999999999999", "1"],
    ["99999999999999999999", "3000000000"],
    ["99999999999999999999", "1.5"],
    ["1" * 39],
    ["1.5", "2"],
    ["1e3", "7"],
    ["1.5", "NaN", "-Infinity", "1d"],
    ["1.5", "3000000000"],
    ["2024-01-31", "1900-01-01"],
    ["2024-01-31", NULL],
    ["2024-02-30", "2024-01-31"],
    ["2024-1-1"],
    ["2024-01-31 10:20:30", "1969-12-31 23:59:59.5"],
    ["2024-01-31 10:20:30.25"],
    ["2024-01-31 10:20:30", "2024-01-31"],
    ["2024-01-31", "1"],
    ["2024-01-31T10:20:30"],
    ["true", "false"],
    ["a b/c", "1", "b=%"],
    ["1", NULL],
]


def test_numbers_have_the_smallest_type_of_spark_that_holds_them() -> None:
    def kind(*texts: str) -> pa.DataType:
        return folder_types([{"k": text} for text in texts])["k"]

    for bits, own in ((31, pa.int32()), (63, pa.int64())):
        assert kind(str(2**bits - 1)) == kind(str(-(2**bits))) == own
    assert kind(str(2**31)) == kind(str(-(2**31) - 1)) == pa.int64()
    assert kind(str(2**63)) == kind(str(-(2**63) - 1)) == pa.decimal128(19, 0)
    # Spark's DecimalType.forType(IntegerType) has 10 digits, and that of LongType 20.
    assert kind("1e3", "7") == pa.decimal128(10, 0)
    assert kind("1e3", str(2**31)) == pa.decimal128(20, 0)


def write(root: Path, texts: list[str], stored: pa.DataType | None = None) -> None:
    """Write a file in a folder `k=...` for each text; `stored` is the type of a column k in it."""
    for number, text in enumerate(texts):
        folder = root / f"k={text if text == NULL else quote(text, ' +')}"
        folder.mkdir(parents=True)
        columns: dict[str, Any] = {"x": [number]}
        if stored is not None:
            columns["k"] = pa.array([90 + number], stored)
        pq.write_table(pa.table(columns), folder / "p.parquet")


def write_csv(root: Path, texts: list[str], stored: pa.DataType | None = None) -> None:
    """Write the rows of `write` as CSV."""
    write(root, texts, stored)
    for file in root.rglob("p.parquet"):
        table = pq.read_table(file, partitioning=None)
        arrow_csv.write_csv(table, file.with_suffix(".csv"))
        file.unlink()


def write_tfrecords(root: Path, texts: list[str], stored: pa.DataType | None = None) -> None:
    """Write the rows of `write` as TFRecord."""
    write(root, texts, stored)
    for file in root.rglob("p.parquet"):
        table = pq.read_table(file, partitioning=None)
        columns = [Column(name, Kind.INT64, pa.int64()) for name in table.column_names]
        (batch,) = table.to_batches()
        file.with_suffix(".tfrecord").write_bytes(frame(encode(batch, columns)))
        file.unlink()


def rows(source: Any, names: list[str]) -> list[tuple[Any, ...]]:
    ranges = [Range(piece, 0, size) for piece, size in enumerate(source.sizes) if size]
    table = pa.Table.from_batches(source.read(ranges, names)).to_pydict()
    return sorted(zip(*(table[name] for name in names), strict=True))


def rows_of_spark(df: DataFrame) -> tuple[pa.DataType, list[tuple[Any, ...]]]:
    """The type of `k`, and all rows of `x` and `k`."""
    expected = pa.Table.from_batches(df.select("x", "k")._collect_as_arrow())
    kind = schema.arrow_type(df.schema["k"].dataType)
    keys = expected["k"].cast(kind).to_pylist()
    return kind, sorted(zip(expected["x"].to_pylist(), keys, strict=True))


@pytest.mark.parametrize("stored", [None, pa.int64()], ids=["folders", "also stored"])
def test_types_and_values_are_those_of_spark(
    spark: SparkSession, tmp_path: Path, stored: pa.DataType | None
) -> None:
    for number, texts in enumerate(TABLES if stored is None else TABLES[:12:3]):
        root = tmp_path / str(number)
        write(root, texts, stored)
        df = spark.read.parquet(str(root))
        kind, wanted = rows_of_spark(df)
        for reader in (ParquetSource(str(root), None, {}), PetastormSource(str(root))):
            assert reader.schema.field("k").type == kind, texts
            assert repr(rows(reader, ["x", "k"])) == repr(wanted), (texts, type(reader))


@pytest.mark.parametrize("stored", [None, pa.int64()], ids=["folders", "also stored"])
def test_types_and_values_of_csv_are_those_of_spark(
    spark: SparkSession, tmp_path: Path, stored: pa.DataType | None
) -> None:
    for number, texts in enumerate(TABLES if stored is None else TABLES[:12:3]):
        root = tmp_path / str(number)
        write_csv(root, texts, stored)
        df = spark.read.csv(str(root), header=True, inferSchema=True)
        kind, wanted = rows_of_spark(df)
        source = DelimitedSource(str(root), CsvFormat(), {})
        assert source.schema.field("k").type == kind, texts
        assert repr(rows(source, ["x", "k"])) == repr(wanted), texts
        parts = [Range(piece, 0, 1) for piece in range(len(texts))]
        alone = [key for batch in source.read(parts, ["k"]) for key in batch["k"].to_pylist()]
        assert sorted(map(repr, alone)) == sorted(repr(key) for _, key in wanted), texts


def batches_of(dataset: Any, as_numpy: bool) -> tuple[dict[str, Any], list[str]]:
    """All rows by column, sorted by x, and the dtypes."""
    batches = list(dataset.as_numpy() if as_numpy else dataset.as_numpy_iterator())
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in ("x", "k")}
    order = np.argsort(columns["x"])
    found = {name: values[order].tolist() for name, values in columns.items()}
    as_text = {n: [v.decode() if isinstance(v, bytes) else v for v in c] for n, c in found.items()}
    return as_text, [str(values.dtype) for values in columns.values()]


@pytest.mark.parametrize("stored", [None, pa.int64()], ids=["folders", "also stored"])
def test_tfrecords_have_the_columns_of_parquet(tmp_path: Path, stored: pa.DataType | None) -> None:
    tables = [texts for texts in TABLES if NULL not in texts and "9" * 20 not in texts]
    for number, texts in enumerate(tables if stored is None else tables[:12:3]):
        write(tmp_path / f"{number}p", texts, stored)
        write_tfrecords(tmp_path / f"{number}t", texts, stored)
        for as_numpy, shuffle in itertools.product([False, True], [False, True]):
            options: dict[str, Any] = {"batch_size_per_worker": 2, "shuffle": shuffle}
            expected = data.parquet(tmp_path / f"{number}p", **options)
            found = data.tfrecord(tmp_path / f"{number}t", **options)
            assert repr(batches_of(found, as_numpy)) == repr(batches_of(expected, as_numpy)), texts


def test_given_types_and_files_outside_of_folders_of_tfrecords(tmp_path: Path) -> None:
    write_tfrecords(tmp_path, ["1", "002"])
    schema = {"k": "string", "x": "int64"}
    (batch,) = data.tfrecord(tmp_path, schema=schema, batch_size_per_worker=2).as_numpy()
    assert batch["k"].tolist() == ["002", "1"]
    (keys,) = data.tfrecord(tmp_path, feature_cols="k", batch_size_per_worker=2).as_numpy()
    assert keys.tolist() == [2, 1] and keys.dtype == "int32"
    (tmp_path / "a.tfrecord").write_bytes((tmp_path / "k=1" / "p.tfrecord").read_bytes())


WRITERS = {"parquet": write, "csv": write_csv, "tfrecord": write_tfrecords}


@pytest.mark.parametrize("reader", WRITERS)
@pytest.mark.parametrize("as_numpy", [True, False], ids=["numpy", "tensorflow"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_column_of_some_folders_is_refused_only_where_it_is_read(
    reader: str, as_numpy: bool, shuffle: bool, tmp_path: Path
) -> None:
    WRITERS[reader](tmp_path, ["1", "002"])
    name = f"p.{reader}"
    (tmp_path / name).write_bytes((tmp_path / "k=1" / name).read_bytes())

    def read(as_numpy: bool = True, **options: Any) -> list[int]:
        options |= {"batch_size_per_worker": 2, "shuffle": shuffle}
        loader = getattr(data, reader)(tmp_path, **options)
        batches = list(loader.as_numpy() if as_numpy else loader.as_numpy_iterator())
        return sorted(value for batch in batches for value in batch.tolist())

    assert read(as_numpy, feature_cols="x", last_batch="drop") in ([0, 0], [0, 1])
    problem = rf"/p\.{reader}(: the file)? has no column 'k', which"
    for options in ({}, {"feature_cols": "k"}):
        with pytest.raises(ValueError, match=problem):
            read(**options)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [None, pa.int64()], ids=["folders", "also stored"])
def test_dataframes_of_tfrecords_are_those_of_spark(
    spark: SparkSession, tmp_path: Path, stored: pa.DataType | None
) -> None:
    for number, texts in enumerate(TABLES[::2] if stored is None else TABLES[:12:3]):
        write(tmp_path / f"{number}p", texts, stored)
        write_tfrecords(tmp_path / f"{number}t", texts, stored)
        expected = spark.read.parquet(f"{tmp_path}/{number}p")
        found = data.read_tfrecord(spark, f"{tmp_path}/{number}t")
        assert sorted(found.dtypes) == sorted(expected.dtypes)
        wanted = sorted(repr((row.x, row.k)) for row in expected.collect())
        assert sorted(repr((row.x, row.k)) for row in found.collect()) == wanted
    only_key = data.read_tfrecord(spark, f"{tmp_path}/0t", "k string")
    assert sorted(row.k for row in only_key.collect()) == sorted(TABLES[0])


def test_given_types_of_folders(tmp_path: Path) -> None:
    write_csv(tmp_path, ["1", "002"])
    text = DelimitedSource(str(tmp_path), CsvFormat({"k": pa.string()}), {})
    assert rows(text, ["k"]) == [("002",), ("1",)]
    number = DelimitedSource(str(tmp_path), CsvFormat({"k": pa.float32()}), {})
    assert rows(number, ["k", "x"]) == [(1.0, 0), (2.0, 1)]
    write_csv(tmp_path / "more", ["a"])
    with pytest.raises(ConfigError, match="schema says that 'k' is int64, and a folder has 'a'"):
        DelimitedSource(str(tmp_path), CsvFormat({"k": pa.int64()}), {})


def test_csv_files_outside_of_the_folders(tmp_path: Path) -> None:
    write_csv(tmp_path, ["1"])
    (tmp_path / "a.csv").write_text("x\n1\n")
    source = DelimitedSource(str(tmp_path), CsvFormat(), {})
    assert sorted(rows(source, ["x"])) == [(0,), (1,)]
    with pytest.raises(ValueError, match=r"a\.csv: the file has no column 'k'"):
        rows(source, ["x", "k"])
    (tmp_path / "a.csv").write_text("x,k\n1,3\n")
    source = DelimitedSource(str(tmp_path), CsvFormat(), {})
    assert rows(source, ["x", "k"]) == [(0, 1), (1, 3)]


@pytest.mark.parametrize("stored", [pa.int32(), pa.int64(), pa.string()])
def test_the_folder_counts_and_is_read_in_place_of_the_file(
    tmp_path: Path, stored: pa.DataType
) -> None:
    for key in (1, 2):
        folder = tmp_path / f"k={key}"
        folder.mkdir()
        pq.write_table(
            pa.table({"x": [key, key], "k": pa.array([99, 98]).cast(stored)}), folder / "p"
        )

    def read(condition: Any) -> list[tuple[Any, ...]]:
        return rows(ParquetSource(str(tmp_path), condition, {}), ["k", "x"])

    assert read(None) == [(1, 1), (1, 1), (2, 2), (2, 2)]
    assert read([("k", "=", 1)]) == [(1, 1), (1, 1)]
    assert read([("k", "!=", 1), ("x", ">", 1)]) == [(2, 2), (2, 2)]
    assert sum(ParquetSource(str(tmp_path), [("k", "=", 99)], {}).sizes) == 0


def test_folders_of_several_paths_have_one_type(tmp_path: Path) -> None:
    write(tmp_path / "a", ["1"])
    write(tmp_path / "b", ["3000000000"])
    source = ParquetSource([tmp_path / "a", tmp_path / "b"], None, {})
    assert source.schema.field("k").type == pa.int64()
    assert rows(source, ["k"]) == [(1,), (3_000_000_000,)]


def test_texts_become_values() -> None:
    texts = folder_texts("a%3Db=1/plain/day=2024-01-31/k=__HIVE_DEFAULT_PARTITION__/p")
    assert texts == {"a=b": "1", "day": "2024-01-31", "k": None}
    assert folder_types([texts]) == {"a=b": pa.int32(), "day": pa.date32(), "k": pa.string()}
    assert folder_value("1", pa.float32()).as_py() == 1.0
