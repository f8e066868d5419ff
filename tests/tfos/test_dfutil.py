"""DataFrames and TFRecord files as TensorFlowOnSpark writes and reads them."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from sparkdl.errors import ConfigError
from sparkdl.tfos import dfutil

pytestmark = pytest.mark.slow

SCHEMA = (
    "b boolean, y tinyint, h smallint, i int, l bigint, f float, d double, s string, x binary, "
    "bs array<boolean>, ls array<bigint>, fs array<float>, ds array<double>"
)
VALUES = (
    *(True, 1, 2, 3, 2**40, 0.1, 0.1, "Öl", bytearray(b"\x00\xff")),
    *([True, False], [1, -2], [1.5, 2.5], [0.25, 0.5]),
)


def example(**features: Any) -> Any:
    import tensorflow as tf

    kinds = {
        int: lambda v: tf.train.Feature(int64_list=tf.train.Int64List(value=v)),
        float: lambda v: tf.train.Feature(float_list=tf.train.FloatList(value=v)),
        bytes: lambda v: tf.train.Feature(bytes_list=tf.train.BytesList(value=v)),
    }
    made = {name: kinds[type(value[0])](value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=made))


def write(path: Path, *examples: Any, options: str = "") -> None:
    import tensorflow as tf

    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for one in examples:
            writer.write(one.SerializeToString())


def load(spark: SparkSession, path: Path | str, *binary: str) -> Any:
    return dfutil.loadTFRecords(spark.sparkContext, str(path), [*binary])


# ---- files


def test_what_is_saved_comes_back(spark: SparkSession, root: str) -> None:
    df = spark.createDataFrame([VALUES, VALUES], SCHEMA)  # A partition for each slot.
    dfutil.saveAsTFRecords(df, f"{root}/rows")
    assert sorted(p.name for p in Path(root, "rows").glob("part-r-*")) == [
        "part-r-00000",
        "part-r-00001",
    ]
    found = load(spark, f"{root}/rows", "x")
    assert found.schema.simpleString() == (
        "struct<b:bigint,bs:array<bigint>,d:double,ds:array<double>,f:double,fs:array<double>,"
        "h:bigint,i:bigint,l:bigint,ls:array<bigint>,s:string,x:binary,y:bigint>"
    )
    single = float(np.float32(0.1))
    expected = Row(
        b=1, bs=[1, 0], d=single, ds=[0.25, 0.5], f=single, fs=[1.5, 2.5], h=2, i=3, l=2**40,
        ls=[1, -2], s="Öl", x=bytearray(b"\x00\xff"), y=1,
    )  # fmt: skip
    assert found.collect() == [expected, expected]
    assert dfutil.isLoadedDF(found)
    assert dfutil.loadedDF[found] == f"{root}/rows"
    assert not dfutil.isLoadedDF(df)
    assert not dfutil.isLoadedDF(found.select("b"))


def test_tensorflow_reads_what_is_saved(spark: SparkSession, root: str) -> None:
    import tensorflow as tf

    df = spark.createDataFrame([(3, [0.5, 2.0], "ü")], "i int, fs array<double>, s string")
    dfutil.saveAsTFRecords(df, f"{root}/rows")
    files = tf.data.Dataset.list_files(f"{root}/rows/part-r-*")
    [record] = tf.data.TFRecordDataset(files).as_numpy_iterator()
    parsed = tf.train.Example.FromString(record)
    assert parsed == example(i=[3], fs=[0.5, 2.0], s=["ü".encode()])


def test_what_tensorflow_writes_is_loaded(spark: SparkSession, tmp_path: Path) -> None:
    one = example(id=[1], image=[b"\x89PNG"], word=[b"one"], xs=[0.5, 1.5])
    two = example(id=[2], image=[b"\xff\xfe"], word=["zwö".encode()], xs=[2.5, 3.5])
    write(tmp_path / "rows" / "part-r-00000", one)
    write(tmp_path / "rows" / "part-r-00001.gz", two, options="GZIP")
    found = load(spark, tmp_path / "rows", "image", "no such feature")
    assert found.dtypes == [
        ("id", "bigint"), ("image", "binary"), ("word", "string"), ("xs", "array<double>"),
    ]  # fmt: skip
    assert found.orderBy("id").collect() == [
        Row(id=1, image=bytearray(b"\x89PNG"), word="one", xs=[0.5, 1.5]),
        Row(id=2, image=bytearray(b"\xff\xfe"), word="zwö", xs=[2.5, 3.5]),
    ]
    both = f"{tmp_path}/rows/part-r-00000,{tmp_path}/rows/*.gz"
    assert load(spark, both, "image").count() == 2


def test_records_that_differ_from_the_first(spark: SparkSession, tmp_path: Path) -> None:
    write(
        tmp_path / "rows",
        example(id=[1], x=[0.5], words=[b"a", b"b"], image=[b"1"], word=[b"first"]),
        example(id=[2], x=[1.0, 2.0], words=[b"c"], image=[b"2", b"3"], word=[b"one", b"more"]),
        example(id=[3], later=[7]),
    )
    found = load(spark, tmp_path / "rows", "image").orderBy("id").collect()
    assert [row.x for row in found] == [[0.5], [1.0, 2.0], None]
    assert [row.words for row in found] == [["a", "b"], ["c"], None]
    assert [row.word for row in found] == ["first", "one", None]
    assert [row.image for row in found] == [bytearray(b"1"), bytearray(b"2"), None]
    assert [row.later for row in found] == [None, None, 7]


def test_a_null_is_a_feature_that_is_not_there(spark: SparkSession, root: str) -> None:
    df = spark.createDataFrame([(1, "a"), (2, None)], "id int, s string")
    dfutil.saveAsTFRecords(df, f"{root}/rows")
    found = load(spark, f"{root}/rows").orderBy("id").collect()
    assert found == [Row(id=1, s="a"), Row(id=2, s=None)]


def test_lists_of_paths_are_read_as_hadoop_does(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        dfutil.saveAsTFRecords(spark.createDataFrame([(name,)], "s string"), f"{tmp_path}/{name}")
    sc = spark.sparkContext
    for paths, names in (("{root}/{{a,b}},{root}/c", "abc"), ("{root}/{{b,c}}/part-*", "bc")):
        loaded = dfutil.loadTFRecords(sc, paths.format(root=tmp_path))
        assert sorted(row.s for row in loaded.collect()) == list(names)


def test_relative_paths_are_on_the_default_filesystem(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dfutil.saveAsTFRecords(spark.range(3), "some/rows")
    assert (tmp_path / "some" / "rows" / "_SUCCESS").exists()
    assert load(spark, "some/rows").count() == 3
    assert load(spark, f"file://{tmp_path}/some/rows").count() == 3


def test_names_with_dots(spark: SparkSession, root: str) -> None:
    df = spark.createDataFrame([("a", 1)], ["s.t `x`", "i.j"])
    dfutil.saveAsTFRecords(df, f"{root}/rows")
    assert load(spark, f"{root}/rows").collect() == [Row(**{"i.j": 1, "s.t `x`": "a"})]


def test_what_cannot_be_is_refused_before_any_job(spark: SparkSession, root: str) -> None:
    df = spark.range(2)
    dfutil.saveAsTFRecords(df, f"{root}/rows")
    with pytest.raises(ConfigError, match="exists already"):
        dfutil.saveAsTFRecords(df, f"{root}/rows")
    with pytest.raises(ConfigError, match="column 't' is of type timestamp"):
        dfutil.saveAsTFRecords(df.select(F.current_timestamp().alias("t")), f"{root}/other")
    with pytest.raises(ConfigError, match="binary_features contains 'id', which has INT64 values"):
        load(spark, f"{root}/rows", "id")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(spark, f"{root}/nowhere")


# ---- rows and records


def test_rows_become_the_examples_that_tensorflow_makes(spark: SparkSession) -> None:
    import tensorflow as tf

    df = spark.createDataFrame([VALUES] * 3, SCHEMA)
    [record, *_] = df.rdd.mapPartitions(dfutil.toTFExample(df.dtypes)).collect()
    assert type(record[0]) is bytearray
    assert record[1] is None
    expected = example(
        b=[1], y=[1], h=[2], i=[3], l=[2**40], f=[0.1], d=[0.1], s=["Öl".encode()],
        x=[b"\x00\xff"], bs=[1, 0], ls=[1, -2], fs=[1.5, 2.5], ds=[0.25, 0.5],
    )  # fmt: skip
    assert tf.train.Example.FromString(bytes(record[0])) == expected


def test_examples_become_rows(spark: SparkSession) -> None:
    many = [
        example(id=[i], xs=[float(i), 0.5], image=[b"\xff", b"2"], words=[b"a", b"b"])
        for i in range(2500)
    ]
    records = [(bytearray(one.SerializeToString()), None) for one in many]
    rows = dfutil.fromTFExample(records, ["image"])
    assert len(rows) == 2500
    assert rows[2100] == Row(id=2100, image=bytearray(b"\xff"), words="a", xs=[2100.0, 0.5])
    assert type(rows[0].image) is bytearray
    parallel = spark.sparkContext.parallelize(records[:4], 2)
    mapped = parallel.mapPartitions(lambda it: dfutil.fromTFExample(it, ["image"]))
    assert mapped.collect() == rows[:4]


def test_features_that_some_records_have_not() -> None:
    import tensorflow as tf

    empty = tf.train.Feature(float_list=tf.train.FloatList())
    there = example(a=[1], b=[2.0])
    there.features.feature["c"].CopyFrom(empty)
    records = [(one.SerializeToString(), None) for one in (there, example(a=[2]))]
    assert dfutil.fromTFExample(records) == [Row(a=1, b=2.0, c=None), Row(a=2)]


def test_the_schema_of_an_example() -> None:
    one = example(i=[1], ls=[1, 2], f=[0.5], fs=[0.5, 1.0], s=[b"a"], ss=[b"a", b"b"], x=[b"\xff"])
    assert dfutil.infer_schema(one, ["x"]).simpleString() == (
        "struct<f:double,fs:array<double>,i:bigint,ls:array<bigint>,s:string,ss:array<string>,"
        "x:binary>"
    )


def test_a_type_that_has_no_example() -> None:
    with pytest.raises(ConfigError, match=r"column 't': unsupported dtype 'timestamp'"):
        dfutil.toTFExample([("t", "timestamp")])


def test_a_damaged_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "rows" / "part-r-00000", example(id=[1]))
    data = (tmp_path / "rows" / "part-r-00000").read_bytes()
    (tmp_path / "rows" / "part-r-00001.gz").write_bytes(gzip.compress(data[:-1]))
    with pytest.raises(Exception, match="part-r-00001"):
        load(spark, tmp_path / "rows").collect()
