"""TFRecord files without TensorFlow: the format, and DataFrames written to it and read from it."""

import gzip
import math
import re
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.data.readers.paths import find, urls_of
from sparkdl.data.tfexample import dataframe_reader, framing, schema_inference
from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.dataframe_reader import read_tfrecord
from sparkdl.data.tfexample.dataframe_writer import write_tfrecord
from sparkdl.data.tfexample.decode import NotAnExample, decode, features
from sparkdl.data.tfexample.encode import encode, varint
from sparkdl.data.tfexample.framing import (
    CorruptRecord,
    chunks,
    compression_of,
    frame,
    measure,
    spans,
)
from sparkdl.data.tfexample.schema_inference import inspect
from sparkdl.data.tfexample.to_arrow import to_batch
from sparkdl.files import storage
from tests.helpers.spark import start_session

INT = Column("i", Kind.INT64, pa.int64())
FLOATS = Column("x y", Kind.FLOAT, pa.float32(), is_array=True)
WORDS = Column("wörds", Kind.BYTES, pa.string(), is_array=True)


def there_and_back(batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
    data = frame(encode(batch, columns))
    return to_batch(decode(data, list(spans(data, "here")), None), columns)


# ---- one Example

numbers = st.integers(-(2**63), 2**63 - 1)
values = {
    INT: numbers,
    Column("n", Kind.BYTES, pa.binary()): st.binary(max_size=300),
    FLOATS: st.lists(st.floats(width=32, allow_nan=False), max_size=40),
    Column("is", Kind.INT64, pa.int64(), is_array=True): st.lists(numbers, max_size=5),
    WORDS: st.lists(st.text(max_size=5), max_size=4),
    Column("b", Kind.INT64, pa.bool_()): st.booleans(),
}


@settings(deadline=None)
@given(st.lists(st.tuples(*(st.none() | value for value in values.values())), max_size=12))
def test_any_values_come_back(rows: list[tuple[Any, ...]]) -> None:
    columns = list(values)
    arrays = [pa.array([row[i] for row in rows], c.arrow_type) for i, c in enumerate(columns)]
    batch = pa.RecordBatch.from_arrays(arrays, names=[c.name for c in columns])
    assert there_and_back(batch, columns).to_pylist() == batch.to_pylist()
    assert there_and_back(batch[1:], columns).to_pylist() == batch[1:].to_pylist()


def test_nothing_hidden_below_a_null_is_written() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 4, 5], pa.int32()),
        pa.array([1.0, 2, 3, 4, 5], pa.float32()),
        mask=pa.array([False, True, False]),
    )
    batch = pa.RecordBatch.from_arrays([hidden], names=[FLOATS.name])
    assert there_and_back(batch, [FLOATS]).column(0).to_pylist() == [[1.0, 2.0], None, [5.0]]


def field(number: int, content: bytes) -> bytes:
    return varint(8 * number + 2) + varint(len(content)) + content


def example(**lists: bytes) -> bytes:
    """An Example from the bytes of its features."""
    entries = (field(1, field(1, name.encode()) + field(2, of)) for name, of in lists.items())
    return field(1, b"".join(entries))


def test_what_protobuf_allows_and_tensorflow_does_not_write() -> None:
    one = struct.pack("<f", 1.0)
    unknown = field(9, b"?") + varint(8 * 10) + varint(300) + varint(8 * 11 + 5) + b"four"
    of_each = {
        "unpacked": field(2, varint(8 + 5) + one + varint(8 + 5) + one),
        "in_pieces": field(3, field(1, b"\x01\x02") + field(1, b"\x03"))
        + field(3, field(1, b"\x04")),
        "last_counts": field(3, field(1, b"\x01")) + field(1, field(1, b"bytes")),
        "unknown": unknown + field(2, field(1, one)) + unknown,
        "empty": b"",
    }
    # Twice the same length, to be read together, and one that differs outside of the contents.
    record = unknown + example(**of_each)
    other = record.replace(b"unknown", b"unkn0wn")
    data = record + other + record
    places = [(i * len(record), (i + 1) * len(record)) for i in range(3)]
    columns = [
        Column("unpacked", Kind.FLOAT, pa.float32(), is_array=True),
        Column("in_pieces", Kind.INT64, pa.int64(), is_array=True),
        Column("last_counts", Kind.BYTES, pa.binary()),
        Column("unknown", Kind.FLOAT, pa.float64()),
        Column("empty", Kind.FLOAT, pa.float32()),
    ]
    rows = to_batch(decode(data, places, None), columns).to_pylist()
    expected = {"unpacked": [1.0, 1.0], "in_pieces": [1, 2, 3, 4], "last_counts": b"bytes"}
    assert rows == [{**expected, "unknown": value, "empty": None} for value in (1.0, None, 1.0)]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"{'a': 1}", "invalid wire type|longer than"),
        (field(1, field(1, field(1, b"\xff") + field(2, b""))), "not text"),
        (varint(8 + 2) + b"\xff", "ends within a field"),
        (example(a=field(3, field(1, b"\x80"))), "cut off"),
        (example(a=field(3, field(1, b"\x80" * 10 + b"\x01"))), "more than 10"),
        (example(a=field(2, field(1, b"abc"))), "4 bytes"),
        (example(a=field(1, field(2, b"abc"))), "'a' has an unexpected field in its list of bytes"),
        (example(a=field(1, b"\x0a")), "'a' ends within a value"),
    ],
)
def test_what_is_no_example(record: bytes, message: str) -> None:
    with pytest.raises(NotAnExample, match=message):
        examples = decode(record, [(0, len(record))], None)
        kind = examples.features["a"].kind
        to_batch(examples, [Column("a", kind, pa.int64(), is_array=True)])


def test_what_a_column_cannot_hold() -> None:
    record = example(many=field(3, field(1, b"\x01\x02")), big=field(3, field(1, varint(300))))
    record += example(raw=field(1, field(1, b"\xff")))
    examples = decode(record, [(0, len(record))], None)
    for column, message in {
        Column("many", Kind.INT64, pa.int64()): "'many' has 2 values.*in which it is an array",
        Column("many", Kind.FLOAT, pa.float32()): "'many' holds INT64; expected FLOAT",
        Column("big", Kind.INT64, pa.int8()): "'big': Integer value 300 not in range",
        Column("raw", Kind.BYTES, pa.string()): "'raw': Invalid UTF8",
    }.items():
        with pytest.raises(NotAnExample, match=message):
            to_batch(examples, [column])


# ---- files


def thirty(path: Path) -> bytes:
    batch = pa.RecordBatch.from_pydict({"i": range(30)})
    path.write_bytes(frame(encode(batch, [INT])))
    return path.read_bytes()


def test_a_file_cut_off_anywhere_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    data = thirty(path)
    each = len(data) // 30
    for length in range(len(data)):
        path.write_bytes(data[:length])
        if length % each == 0:
            assert measure(str(path), None) == (length // each, length)
            continue
        at = (
            f"corrupt TFRecord file '.*a': the record at byte {length - length % each} is cut off: "
        )
        for read in (partial(measure, str(path), None), lambda: list(chunks(str(path), None))):
            with pytest.raises(CorruptRecord, match=f"{at}the file ends {length % each} bytes"):
                read()


def test_a_damaged_file_names_the_record(tmp_path: Path) -> None:
    path = tmp_path / "a"
    data = thirty(path)
    each = len(data) // 30
    for i in range(2 * each, 3 * each):
        path.write_bytes(data[:i] + bytes([data[i] ^ 4]) + data[i + 1 :])
        with pytest.raises(
            CorruptRecord, match=f"mismatch in the (length|data) of .* byte {2 * each}"
        ):
            list(chunks(str(path), None))
    path.write_bytes(data[:4] + b"\x01" + data[5:])
    with pytest.raises(CorruptRecord, match="mismatch in the length of the record at byte 0"):
        measure(str(path), None)


def test_compressed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    data = thirty(path)
    half = len(data) // 2
    kinds = {
        gzip.compress(data): "gzip",
        gzip.compress(data[:half]) + gzip.compress(b"") + gzip.compress(data[half:]): "gzip",
        zlib.compress(data): "zlib",
        data: None,
    }
    for chunk_bytes in (7, 100, 1 << 20):
        monkeypatch.setattr(framing, "CHUNK_BYTES", chunk_bytes)
        for stored, kind in kinds.items():
            path.write_bytes(stored)
            assert compression_of(str(path)) == kind
            assert measure(str(path), kind) == (30, len(data))
            found = [part[a:b] for _, part, ab in chunks(str(path), kind) for a, b in ab]
            assert found == [data[a:b] for a, b in spans(data, "")]
        for stored in list(kinds)[:3]:
            path.write_bytes(stored[:-9])
            with pytest.raises(CorruptRecord, match="compressed stream is cut off"):
                measure(str(path), "gzip")
    # The last piece is full, and nothing comes after it.
    monkeypatch.setattr(framing, "CHUNK_BYTES", len(data))
    path.write_bytes(gzip.compress(data))
    assert measure(str(path), "gzip") == (30, len(data))
    path.write_bytes(gzip.compress(data) + b"junk" * 9)
    with pytest.raises(CorruptRecord, match="cannot be decompressed at byte"):
        measure(str(path), "gzip")
    path.write_text("label,pixel\n1,2\n")
    with pytest.raises(CorruptRecord, match="neither a record, gzip nor zlib"):
        compression_of(str(path))


def meant(paths: Any) -> list[str]:
    return urls_of(find(paths))


def test_which_files_are_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "it's [1] röot"
    names = ["b", "a", "_SUCCESS", ".crc", "_temporary-1/c", "in/d", "in/.e"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    a, b, d = (str(folder / name) for name in ("a", "b", "in/d"))
    assert meant(folder) == meant(f"file://{folder}/") == [a, b, d]
    assert meant([b, folder / "a"]) == [b, a]
    monkeypatch.chdir(folder)
    assert meant("a") == [a]
    assert meant(f"{tmp_path}/*/?") == meant(f"{tmp_path}/it*/[ab]") == [a, b]
    assert meant(f"{tmp_path}/*") == [a, b, d]
    for missing in ("c", "x*", tmp_path / "no"):
        with pytest.raises(FileNotFoundError, match="no files found at"):
            meant(missing)
    with pytest.raises(ValueError, match="list of paths is empty"):
        meant([])


def test_what_the_first_records_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(ValueError, match="there is no record"):
        inspect(meant(tmp_path), "auto")
    batch = pa.RecordBatch.from_pydict(
        {"i": range(20), "x y": [[1.0] * 3] * 20, "wörds": [["ö"]] * 20}
    )
    (tmp_path / "b").write_bytes(frame([example(a=field(2, field(1, b"abc")))]))
    with pytest.raises(NotAnExample, match=r"/b', in the records from byte 0 on: feature 'a' has"):
        inspect(meant(tmp_path), "auto")
    (tmp_path / "b").write_bytes(frame(encode(batch, [INT, FLOATS, WORDS])))
    found = inspect(meant(tmp_path), "auto")
    assert [found.length(n) for n in ("i", "x y", "wörds")] == [1, 3, 1]
    (tmp_path / "c").write_bytes(frame(encode(batch.slice(0, 2), [INT])))
    found = inspect(meant(tmp_path), "auto")
    assert found.records == 22
    assert found.kinds == {"i": Kind.INT64, "x y": Kind.FLOAT, "wörds": Kind.BYTES}
    assert [found.length(n) for n in ("i", "x y", "wörds")] == [1, None, None]
    assert [found.is_array(n) for n in ("i", "x y", "wörds")] == [False, True, False]
    monkeypatch.setattr(schema_inference, "INSPECTED_RECORDS", 5)
    assert inspect(meant(tmp_path), "auto").records == 5
    (tmp_path / "d").write_bytes(frame([example(i=field(2, b""))]))
    with pytest.raises(NotAnExample, match=r"'i' holds (INT64|FLOAT) in one"):
        monkeypatch.setattr(schema_inference, "INSPECTED_RECORDS", 50)
        inspect(meant(tmp_path), "auto")


# ---- DataFrames

ALL = T.StructType(
    [
        *(T.StructField(f"{t.typeName()} ü", t) for t in (T.ByteType(), T.ShortType())),
        *(T.StructField(t.typeName(), t) for t in (T.IntegerType(), T.LongType())),
        *(T.StructField(t.typeName(), t) for t in (T.FloatType(), T.DoubleType())),
        *(T.StructField(t.typeName(), t) for t in (T.BooleanType(), T.StringType())),
        T.StructField("binary", T.BinaryType()),
        T.StructField("longs", T.ArrayType(T.LongType())),
        T.StructField("bools", T.ArrayType(T.BooleanType())),
        T.StructField("doubles", T.ArrayType(T.DoubleType())),
        T.StructField("strings", T.ArrayType(T.StringType())),
        T.StructField("binaries", T.ArrayType(T.BinaryType())),
    ]
)


def row(i: int) -> tuple[Any, ...]:
    """A row with a value for each type; every 7th has none at all."""
    if i % 7 == 6:
        return (None,) * len(ALL)
    arrays = ([i, -i], [True], [i / 4, 0.0], ["", f"日{i}"], [b"\0", b"x" * i])
    empty = ([], None)[i % 2]
    scalars = (i - 50, -i, -(2**31) + i, 2**63 - 1 - i, i / 8, -i / 4, i % 3 == 0, f"ö {i}")
    return (*scalars, bytes([i]), *(empty if i % 5 == 4 else array for array in arrays))


@pytest.fixture(scope="module")
def every(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([row(i) for i in range(101)], ALL).repartition(3)


def rows_of(df: DataFrame) -> list[str]:
    return sorted(map(str, df.collect()))


pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_every_type_there_and_back(
    spark: SparkSession, every: DataFrame, root: str, compression: str | None
) -> None:
    path = f"{root}/out"
    assert write_tfrecord(every, path, compression=compression) == 101
    written = [name for name in storage.list_names(path) if name != "_SUCCESS"]
    ending = ".tfrecord.gz" if compression else ".tfrecord"
    assert [name[:11] + name[43:] for name in written] == [
        f"part-0000{i}-{ending}" for i in range(3)
    ]
    back = read_tfrecord(spark, path, ALL)
    assert [f.dataType.simpleString() for f in back.schema] == [
        f.dataType.simpleString() for f in ALL
    ]
    assert rows_of(back) == rows_of(every)
    assert back.select("long").where("long > 0").count() == 87


@pytest.mark.slow
@pytest.mark.usefixtures("own_application")
def test_tasks_need_no_tensorflow(root: str) -> None:
    spark = start_session("local[2]")  # In a shared one, another test may have imported it.
    df = spark.createDataFrame([row(i) for i in range(101)], ALL).repartition(3)
    write_tfrecord(df, f"{root}/out")
    assert read_tfrecord(spark, f"{root}/out").count() == 101

    def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        names = [n for n in ("sparkdl", "tensorflow") if n in sys.modules]
        yield pa.RecordBatch.from_pydict({"name": names})

    assert spark.range(0, 1, 1, 1).mapInArrow(loaded, "name string").collect() == [
        Row(name="sparkdl")
    ]


@pytest.mark.slow
def test_what_is_inferred(spark: SparkSession, root: str) -> None:
    rows = [(1, 0.5, "ö", [1.0, 2.0], [1], None), (2, None, "b", [], [2], "x")]
    df = spark.createDataFrame(
        rows, "id int, x double, s string, xs array<float>, one array<int>, n string"
    )
    write_tfrecord(df, f"{root}/out", num_files=1)
    back = read_tfrecord(spark, f"{root}/out")
    types = "struct<id:bigint,n:binary,one:bigint,s:binary,x:float,xs:array<float>>"
    assert back.schema.simpleString() == types
    back = read_tfrecord(spark, f"{root}/out", strings=["s", "n"])
    first, second = sorted(back.collect())
    assert first == Row(id=1, n=None, one=1, s="ö", x=0.5, xs=[1.0, 2.0])
    assert second == Row(id=2, n="x", one=2, s="b", x=None, xs=[])
    some = read_tfrecord(spark, f"{root}/out", "one array<long>, other string, s string not null")
    assert sorted(some.collect()) == [
        Row(one=[1], other=None, s="ö"),
        Row(one=[2], other=None, s="b"),
    ]


@pytest.mark.slow
def test_schemas_that_do_not_fit(spark: SparkSession, root: str) -> None:
    write_tfrecord(spark.range(3).selectExpr("id", "array(id, id) two"), f"{root}/out")
    for schema, message in {
        "id float": "part-0000.*'id' holds INT64; expected FLOAT",
        "two long": "from byte 0 on: feature 'two' has 2 values in a record",
    }.items():
        with pytest.raises(PySparkException, match=message):
            read_tfrecord(spark, f"{root}/out", schema).collect()
    for options, message in {
        ("id date",): "column 'id' is of type date",
        ("id lnog",): "expected a StructType or DDL",
        ("id long", "strings"): "use 'string' in schema=",
        (None, "strings"): r"names 'strings'; the features are \['id', 'two'\]",
    }.items():
        with pytest.raises(ValueError, match=message):
            schema, *strings = options
            read_tfrecord(spark, f"{root}/out", schema, strings=strings)
    with pytest.raises(ValueError, match=r"compression is 'GZIP'.*Did you mean 'gzip'\?"):
        read_tfrecord(spark, f"{root}/out", compression="GZIP")
    with pytest.raises(FileNotFoundError, match="no files found at"):
        read_tfrecord(spark, f"{root}/nothing")


@pytest.mark.slow
def test_a_damaged_file_fails_the_job_that_reads_it(spark: SparkSession, root: str) -> None:
    write_tfrecord(spark.range(100), f"{root}/out", num_files=1)
    [path] = meant(f"{root}/out")
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    broken = read_tfrecord(spark, f"{root}/out", "id long")
    with pytest.raises(
        PySparkException,
        match=r"part-00000.*checksum mismatch in the data of the record at byte \d+",
    ):
        broken.collect()


@pytest.mark.slow
def test_what_cannot_be_written_starts_no_job(spark: SparkSession, root: str) -> None:
    failing = spark.range(3).selectExpr("cast(raise_error('a job was started') as bigint) id")
    vector = spark.range(1).select(array_to_vector(F.array(F.lit(1.0))).alias("v"))
    for df, message in {
        failing.selectExpr("id", "current_date() day"): "column 'day' is of type date",
        failing.selectExpr("cast(id as decimal(9,2)) d"): "column 'd' is of type decimal",
        failing.selectExpr("named_struct('a', id) s"): r"column 's'.*df.select\('s\.\*'\)",
        failing.selectExpr("array(array(id)) a"): "column 'a' is of type array<array<.*Flatten",
        failing.selectExpr("map(id, id) m"): "column 'm' is of type map",
        failing.selectExpr("id", "id"): "two columns are called 'id'",
        failing.select(): "has no column",
        vector: "column 'v'.*vector_to_array",
    }.items():
        with pytest.raises(ValueError, match=message):
            write_tfrecord(df, f"{root}/out")
    Path(root, "full").mkdir()
    Path(root, "full", "mine").write_text("")
    for options, message in {
        (("compression", "zip"),): "compression is 'zip'",
        (("compression", "zlib"),): "expected None or 'gzip'",
        (("num_files", 0),): "num_files is 0",
        (("mode", "append"),): "mode is 'append'; expected 'error' or 'overwrite'",
        (): "exists already and is not empty",
    }.items():
        with pytest.raises(ValueError, match=message):
            write_tfrecord(failing, f"{root}/full", **dict(options))  # type: ignore[arg-type]
    for mode in ("error", "overwrite"):
        with pytest.raises(ValueError, match="mine' is a file; expected a folder"):
            write_tfrecord(failing, f"{root}/full/mine", mode=mode)
    assert storage.list_names(f"{root}/full") == ["mine"]
    with pytest.raises(PySparkException, match="a job was started"):
        write_tfrecord(failing, f"{root}/full", mode="overwrite")
    assert storage.list_names(f"{root}/full") == ["mine"]  # A job that fails leaves all as it was.
    with pytest.raises(PySparkException, match="'a' has an array with a null in it"):
        write_tfrecord(spark.range(1).selectExpr("array(id, null) a"), f"{root}/null")


@pytest.mark.slow
def test_overwriting_what_is_read(spark: SparkSession, root: str) -> None:
    path = f"{root}/out"
    assert write_tfrecord(spark.range(10), path, num_files=4) == 10
    Path(path, "in").mkdir()
    Path(path, "in", "other").write_bytes(b"")
    more = read_tfrecord(spark, path).selectExpr("id + 1 id")
    assert write_tfrecord(more, path, mode="overwrite", num_files=1) == 10
    assert [name[:5] for name in storage.list_names(path)] == ["_SUCC", "part-"]
    assert {r.id for r in read_tfrecord(spark, path).collect()} == set(range(1, 11))


@pytest.mark.slow
def test_names_with_dots(spark: SparkSession, root: str) -> None:
    df = spark.createDataFrame([(1, 0.5)], "`a.b` long, `a` float")
    assert write_tfrecord(df, f"{root}/out") == 1
    assert read_tfrecord(spark, f"{root}/out").collect() == [Row(**{"a": 0.5, "a.b": 1})]


@pytest.mark.slow
def test_partitions_without_rows(spark: SparkSession, root: str) -> None:
    few = spark.range(0, 10, 1, 10).where("id = 3 or id = 7")
    assert write_tfrecord(few, f"{root}/few") == 2
    assert [name[:10] for name in storage.list_names(f"{root}/few")[1:]] == [
        "part-00003",
        "part-00007",
    ]
    assert write_tfrecord(few.where("id = 0"), f"{root}/none") == 0
    assert storage.list_names(f"{root}/none") == ["_SUCCESS"]


@pytest.mark.slow
def test_one_task_reads_many_files(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tfrecord(spark.range(50), f"{root}/out", num_files=7)
    monkeypatch.setattr(dataframe_reader, "MAX_TASKS", 2)
    back = read_tfrecord(spark, f"{root}/out")
    assert {r.id for r in back.collect()} == set(range(50))
    tasks = back.select(F.spark_partition_id().alias("task")).distinct()
    assert tasks.count() == 2


# ---- with TensorFlow


@pytest.mark.slow
def test_tensorflow_reads_what_we_write(spark: SparkSession, every: DataFrame, root: str) -> None:
    import tensorflow as tf

    def lists(record: bytes) -> dict[str, list[Any]]:
        found = tf.train.Example.FromString(record).features.feature
        return {n: list(getattr(f, f.WhichOneof("kind")).value) for n, f in found.items()}

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode()
        return bytes(value) if isinstance(value, bytearray) else value

    expected = [
        {n: [plain(v) for v in (vs if isinstance(vs, list) else [vs])] for n, vs in row.items()}
        for row in (
            {n: v for n, v in row.asDict().items() if v is not None} for row in every.collect()
        )
    ]
    for compression in (None, "gzip"):
        write_tfrecord(every, root, compression=compression, mode="overwrite")
        dataset = tf.data.TFRecordDataset(meant(root), "GZIP" if compression else "")
        read = [lists(record) for record in dataset.as_numpy_iterator()]
        # Equal dicts, whatever their order; True is 1.
        assert len(read) == 101
        assert all(row in expected for row in read)
        assert all(row in read for row in expected)


@pytest.mark.slow
def test_wide_floats_are_bit_for_bit(spark: SparkSession, root: str) -> None:
    import tensorflow as tf

    x = np.random.default_rng(0).normal(size=(40, 784)).astype(np.float32)
    x[0, :4] = [np.nan, np.inf, -0.0, 1e-45]
    df = spark.createDataFrame(
        [(i, row.tolist()) for i, row in enumerate(x)], "i long, x array<float>"
    )
    write_tfrecord(df, f"{root}/out")
    spec = {"i": tf.io.FixedLenFeature([], tf.int64), "x": tf.io.FixedLenFeature([784], tf.float32)}
    for record in tf.data.TFRecordDataset(meant(f"{root}/out")):
        one = tf.io.parse_single_example(record, spec)
        assert one["x"].numpy().tobytes() == x[one["i"].numpy()].tobytes()
    back = {r.i: r.x for r in read_tfrecord(spark, f"{root}/out").collect()}
    assert np.array([back[i] for i in range(40)], np.float32).tobytes() == x.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_we_read_what_tensorflow_writes(spark: SparkSession, root: str, compression: str) -> None:
    import tensorflow as tf

    def record(i: int) -> bytes:
        lists = {
            "i": tf.train.Feature(int64_list=tf.train.Int64List(value=[i**9, -i])),
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=[i / 4] * (i % 3))),
            "ö": tf.train.Feature(bytes_list=tf.train.BytesList(value=[f"ü{i}".encode() * i])),
        }
        return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()

    for part in range(2):
        with tf.io.TFRecordWriter(f"{root}/{part}", compression) as file:
            for i in range(part * 50, part * 50 + 50):
                file.write(record(i))
    back = read_tfrecord(spark, root, strings=["ö"])
    assert back.schema.simpleString() == "struct<i:array<bigint>,x:array<float>,ö:string>"
    expected = [Row(i=[i**9, -i], x=[i / 4] * (i % 3), ö=f"ü{i}" * i) for i in range(100)]
    assert sorted(back.collect()) == sorted(expected)
    assert features(record(3))[0]["ö"][0] is Kind.BYTES


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("own_application")
def test_a_task_that_runs_twice_leaves_its_rows_once(root: str) -> None:
    spark = start_session("local[2,3]")
    failed = f"{root}/failed"

    def once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        try:
            Path(failed).touch(exist_ok=False)
        except FileExistsError:
            return
        raise OSError("the first attempt fails after its rows were passed on")

    try:
        df = spark.range(0, 1000, 1, 2).mapInArrow(once, "id long")
        assert write_tfrecord(df, f"{root}/out") == 1000
        assert Path(failed).exists()
        assert len(storage.list_names(f"{root}/out")) == 3
        found = [r.id for r in read_tfrecord(spark, f"{root}/out").collect()]
        assert sorted(found) == list(range(1000))
    finally:
        spark.stop()


@pytest.mark.slow
def test_s3(s3: str, spark: SparkSession, tmp_path: Path) -> None:
    path = f"{s3}/{tmp_path.name} ü'"
    df = spark.createDataFrame([row(i) for i in range(101)], ALL).repartition(3)
    assert write_tfrecord(df, f"{path}/out", compression="gzip") == 101
    assert write_tfrecord(df, f"{path}/out", mode="overwrite") == 101
    with pytest.raises(ValueError, match="exists already"):
        write_tfrecord(df, f"{path}/out")
    assert [name[:5] for name in storage.list_names(f"{path}/out")] == ["_SUCC", *["part-"] * 3]
    for where in (f"{path}/out", f"{path}/*/part-*.tfrecord", meant(f"{path}/out")):
        assert rows_of(read_tfrecord(spark, where, ALL)) == rows_of(df)


# ---- what a record has no place for


@pytest.mark.parametrize("is_array", [False, True])
def test_doubles_are_rounded_but_stay_finite(is_array: bool) -> None:
    import tensorflow as tf

    column = Column("x", Kind.FLOAT, pa.float64(), is_array)

    def write(*values: float | None) -> list[float]:
        rows = [[value] for value in values] if is_array else list(values)
        kind = pa.list_(pa.float64()) if is_array else pa.float64()
        records = encode(pa.RecordBatch.from_pydict({"x": pa.array(rows, kind)}), [column])
        parts = [tf.train.Example.FromString(record).features for record in records]
        return [part.feature["x"].float_list.value[0] for part in parts]

    values = [0.1, 16777217.0, math.nan, math.inf, -0.0, 2.0**-149, -1e-300]
    assert repr(write(*values)) == repr(np.array(values, np.float32).tolist())
    for value in (1e300, -3.5e38):
        with pytest.raises(ValueError, match=f"column 'x' has {re.escape(str(value))}, .* finite"):
            write(1.0, value)


@pytest.mark.slow
def test_columns_of_nulls_and_of_doubles_are_named(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    df = spark.createDataFrame([(1, None, 0.5), (2, None, None)], "i int, gone string, x double")
    with caplog.at_level("INFO", "sparkdl.data"):
        write_tfrecord(df, tmp_path / "t", num_files=2)
    assert "column 'gone' has only nulls" in caplog.text and "'i'" not in caplog.text
    assert "doubles are rounded to float32: 'x'" in caplog.text
    assert read_tfrecord(spark, tmp_path / "t").columns == ["i", "x"]
    assert read_tfrecord(spark, tmp_path / "t", df.schema).columns == df.columns
