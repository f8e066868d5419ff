"""CSV files: what is inferred, what is given, and what is refused."""

import bz2
import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl.data.readers import csv_format
from sparkdl.data.readers.csv_format import BLOCK_BYTES
from sparkdl.data.readers.delimited import csv
from sparkdl.errors import ConfigError
from sparkdl.files import storage

pytestmark = pytest.mark.slow


def read(path: Any, **options: Any) -> dict[str, list[Any]]:
    """All rows, by column."""
    batches = list(csv(path, **{"global_batch_size": 1 << 20, **options}).as_numpy_iterator())
    assert len(batches) <= 1
    found = batches[0] if batches else {}
    assert isinstance(found, dict)
    return {name: values.tolist() for name, values in found.items()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sömé.csv"


def test_types_are_inferred(file: Path) -> None:
    file.write_text(
        "i,f,s,b,d,t\n"
        "1,0.5,a,true,1970-01-02,1970-01-01 00:00:01\n"
        "-2,1,,false,1970-01-01,1970-01-02 00:00:00\n"
    )
    assert read(file, fill={"s": ""}) == {
        "i": [1, -2],
        "f": [0.5, 1.0],
        "s": [b"a", b""],
        "b": [True, False],
        "d": [1, 0],
        "t": [1_000_000, 86_400_000_000],
    }


@pytest.mark.parametrize(
    "schema",
    [{"i": "float32", "s": pa.string()}, pa.schema([("i", pa.float32()), ("s", pa.string())])],
)
def test_types_are_given(file: Path, schema: Any) -> None:
    file.write_text("i,s,other\n1,007,3\n")
    dataset = csv(file, schema=schema, global_batch_size=2)
    (found,) = dataset.as_numpy_iterator()
    assert found["i"].dtype == "float32" and found["other"].dtype == "int64"
    assert found["s"].tolist() == [b"007"]


def test_quotes_newlines_and_delimiters(file: Path) -> None:
    file.write_text('a;b\n"x;y\n""z""";1\n', encoding="utf-8")
    assert read(file, delimiter=";") == {"a": [b'x;y\n"z"'], "b": [1]}
    file.write_text("a\tb\n1\t2\n")
    assert read(file, sep="\t") == {"a": [1], "b": [2]}


def test_newlines_where_a_block_ends(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "BLOCK_BYTES", 1 << 10)
    file.write_text("text,i\n" + "".join(f'"{"x" * 50}\n{i}",{i}\n' for i in range(400)))
    with pytest.raises(ValueError, match=r"csv: in a file this large no value may hold line ends"):
        read(file)


@pytest.mark.parametrize(
    ("options", "names", "rows"),
    [
        ({}, ["a", "b"], 1),
        ({"column_names": ["c", "d"]}, ["c", "d"], 1),
        ({"header": False}, ["f0", "f1"], 2),
        ({"header": False, "column_names": ["c", "d"]}, ["c", "d"], 2),
    ],
)
def test_names_of_columns(file: Path, options: Any, names: list[str], rows: int) -> None:
    file.write_text("a,b\n1,2\n")
    found = read(file, **options)
    assert list(found) == names
    assert {len(values) for values in found.values()} == {rows}


@pytest.mark.parametrize(("ending", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_compressed_files(file: Path, ending: str, compress: Any) -> None:
    packed = file.with_suffix(f".csv.{ending}")
    packed.write_bytes(compress(b"a,b\n" + b"1,2\n" * 1000))
    packed.with_name(f"0.{ending}").write_bytes(compress(b""))
    assert read(packed.parent) == {"a": [1] * 1000, "b": [2] * 1000}


def test_columns_of_one_name(file: Path) -> None:
    file.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(ValueError, match=r"several columns called 'a'.*column_names"):
        csv(file, global_batch_size=1)
    assert read(file, column_names=["a", "b", "c"]) == {"a": [1], "b": [2], "c": [3]}


def test_a_file_of_many_blocks(file: Path) -> None:
    rows = BLOCK_BYTES // 5
    file.write_text("i,text\n" + "".join(f"{i},{'x' * (i % 7)}\n" for i in range(rows)))
    assert file.stat().st_size > 2 * BLOCK_BYTES
    dataset = csv(file, feature_cols="i", global_batch_size=1000)
    assert [i for batch in dataset.as_numpy_iterator() for i in batch] == list(range(rows))


def test_the_first_file_with_rows_says_the_types_of_all(tmp_path: Path) -> None:
    for name, text in {"0": "", "1": "a,b\n", "2": "b,a\n1.5,1\n", "3": "a,b\n2,3\n"}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    assert read(tmp_path) == {"b": [1.5, 3.0], "a": [1, 2]}


def test_nulls(file: Path) -> None:
    import tensorflow as tf

    file.write_text("a,b\n1,x\n,y\n")
    with pytest.raises(tf.errors.InvalidArgumentError, match="column 'a' has 1 nulls"):
        read(file)
    assert read(file, fill={"a": -1})["a"] == [1, -1]


def test_a_line_that_does_not_parse(tmp_path: Path, file: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    file.write_text("a,b\n1,2\n3,4,5\n")
    with pytest.raises(ValueError, match=r"sömé\.csv: .*Expected 2 columns, got 3: 3,4,5"):
        csv(tmp_path, global_batch_size=1)


def test_a_value_of_another_type_names_file_and_value(file: Path) -> None:
    import tensorflow as tf

    file.write_text("a,b\n" + "1,2\n" * BLOCK_BYTES + "1,two\n")
    dataset = csv(file, global_batch_size=1 << 16)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"sömé\.csv: .*'two'.* see schema="):
        for _ in dataset:
            pass
    assert sum(len(a) for a in csv(file, feature_cols="a", global_batch_size=1 << 16)) > BLOCK_BYTES


def test_files_of_other_columns(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("a,b\n1,2\n")
    (tmp_path / "2").write_text("a,c\n1,2\n")
    with pytest.raises(ValueError, match=r"/2 has columns a, c; .*/1 has a, b"):
        csv(tmp_path, global_batch_size=1)


def test_files_without_columns(file: Path) -> None:
    file.touch()
    with pytest.raises(ValueError, match="no file has columns"):
        csv(file, global_batch_size=1)


def test_a_file_that_has_changed(file: Path) -> None:
    import tensorflow as tf

    file.write_text("a,b\n1,2\n")
    dataset = csv(file, global_batch_size=1)
    os.utime(file, (1, 1))
    with pytest.raises(tf.errors.InvalidArgumentError, match="has changed since it was listed"):
        list(dataset)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": {"a": "float33"}}, r"schema\['a'\] is 'float33'; expected a pyarrow type"),
        ({"schema": {"z": "float32"}}, "schema names column 'z'.*Columns are a, b"),
        ({"fill": {"z": 0}}, "fill names column 'z'"),
        ({"delimiter": "||"}, r"sep is '\|\|'; expected one character"),
        ({"column_names": "ab"}, "column_names is 'ab'; expected a list"),
        ({"feature_cols": "z"}, "no column 'z'"),
        ({"batch_size": 3}, "unknown argument 'batch_size'"),
    ],
)
def test_arguments_that_are_wrong(file: Path, options: Any, message: str) -> None:
    file.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=message):
        csv(file, global_batch_size=1, **options)


@pytest.mark.parametrize("store", ["memory", "s3"])
def test_stores(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    root = "memory://" if store == "memory" else request.getfixturevalue("s3")
    url = f"{root}/{tmp_path.name}"
    for number in range(2):
        storage.write(f"{url}/{number}.csv.gz", gzip.compress(f"a\n{number}\n".encode()))
    assert read([f"{url}/1.csv.gz", f"{url}/0*"], feature_cols={"a": "a"}) == {"a": [1, 0]}


def test_folders_that_spark_has_written(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(100).selectExpr("id", "concat('a,\"', id) text")
    df.repartition(3).write.csv(str(tmp_path / "t"), header=True, compression="gzip", escape='"')
    found = read(tmp_path / "t")
    assert sorted(found["id"]) == list(range(100))
    assert found["text"] == [f'a,"{i}'.encode() for i in found["id"]]
