"""The ways of older versions of Spark, which this Spark takes too: both give what Spark says."""

import datetime
import functools
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.ml.feature import Binarizer
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkdl.cluster.spark_context import ClassicContext, failed_tasks
from sparkdl.errors import ConfigError
from sparkdl.spark import capabilities
from sparkdl.spark.capabilities import (
    apply_in_arrow,
    collect_stage,
    has_profiles,
    hash_of,
    keys_of_partitions,
    owner_of_stages,
    parse_type,
    repartition_by_id,
    scala_version,
    to_arrow,
)

NEWER = ("repartitionById", "toArrow", "getJobIdsForTag")


class Older:
    """An object of Spark without what Spark 3.5 does not have."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        if name in NEWER:
            raise AttributeError(name)
        return getattr(self._own, name)

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._own) if name not in NEWER]

    def mapInArrow(self, task: Any, schema: Any, barrier: bool = False) -> Any:
        return self._own.mapInArrow(task, schema, barrier)


def as_it_is(own: Any) -> Any:
    return own


either_way = pytest.mark.parametrize("of", [as_it_is, Older])


@pytest.mark.slow
def test_hash_is_that_of_spark(spark: SparkSession) -> None:
    keys = [*range(-9, 40), 2**31 - 1, -(2**31)]
    rows = spark.createDataFrame([(key,) for key in keys], "key int").select(F.hash("key"))
    assert [hash_of(key) for key in keys] == [value for (value,) in rows.collect()]


def test_each_partition_has_a_key() -> None:
    for count in (1, 2, 3, 7, 100):
        keys = keys_of_partitions(count)
        assert [hash_of(key) % count for key in keys] == list(range(count))


@pytest.mark.slow
@either_way
@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_are_in_the_partition_of_their_number(
    spark: SparkSession, of: Any, count: int
) -> None:
    frame = spark.range(23).withColumn("number", F.expr(f"cast(id * id % {count} AS int)"))
    placed = repartition_by_id(of(frame), count, F.col("number"))
    assert placed.rdd.getNumPartitions() == count
    rows = placed.select("id", "number", F.spark_partition_id()).collect()
    assert sorted(row.id for row in rows) == list(range(23))
    assert [row[2] for row in rows] == [row.number for row in rows]


ROW = Row(
    n=7,
    x=None,
    text="é",
    data=bytearray(b"\0\1"),
    list=[1.5, None],
    pair=Row(a=1, b="c"),
    time=datetime.datetime(2026, 11, 28, 13, 0, 0, 5),
    day=datetime.date(2026, 11, 28),
)
SCHEMA = (
    "n bigint, x float, text string, data binary, list array<double>, "
    "pair struct<a:int,b:string>, time timestamp, day date"
)


@pytest.mark.slow
@either_way
@pytest.mark.parametrize("count", [0, 1, 3])
def test_rows_become_a_table(
    spark: SparkSession, of: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.pandas import types

    if "timezone" in inspect.signature(types.to_arrow_schema).parameters:  # Newer than toArrow.
        with_zone = functools.partial(types.to_arrow_schema, timezone="UTC")
        monkeypatch.setattr(types, "to_arrow_schema", with_zone)
    frame = spark.createDataFrame([ROW] * count, SCHEMA)
    table = to_arrow(of(frame))
    assert table.schema.names == frame.columns
    assert table.schema.field("time").type == pa.timestamp("us", tz="UTC")
    assert table.schema.field("list").type == pa.list_(pa.float64())
    expected = ROW.asDict(recursive=True) | {
        "data": b"\0\1",
        "time": ROW.time.astimezone(datetime.timezone.utc),
    }
    assert table.to_pylist() == [expected] * count
    if hasattr(frame, "toArrow"):
        assert table.equals(frame.toArrow())


@pytest.mark.slow
def test_a_function_gets_each_group_whole(spark: SparkSession) -> None:
    rows = [(None if n % 5 == 0 else f"k{n % 4}", n) for n in range(40)]
    frame = spark.createDataFrame(rows, "key string, n long").repartition(3)

    def total(group: pa.Table) -> pa.Table:
        (key,) = set(group["key"].to_pylist())
        return pa.table({"key": pa.array([key], "string"), "n": [sum(group["n"].to_pylist())]})

    result = apply_in_arrow(frame, "key", total, frame.schema)
    sums = frame.groupBy("key").agg(F.sum("n")).collect()
    assert sorted(map(str, map(tuple, result.collect()))) == sorted(map(str, map(tuple, sums)))


@pytest.mark.slow
@pytest.mark.parametrize("is_older", [False, True])
def test_texts_become_types(
    spark: SparkSession, is_older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_older:
        monkeypatch.delattr(T.DataType, "fromDDL", raising=False)
    assert parse_type("float") == T.FloatType()
    assert parse_type("array<float>") == T.ArrayType(T.FloatType())
    assert parse_type("decimal(10,2)") == T.DecimalType(10, 2)
    pair = T.StructType([T.StructField("a", T.StringType()), T.StructField("b", T.FloatType())])
    assert parse_type("a string, b float") == pair
    assert parse_type("struct<a: string, b: float>") == pair
    for text in ("floot", "a floot", "array<float"):
        with pytest.raises(PySparkException):
            parse_type(text)


@pytest.mark.slow
@either_way
@pytest.mark.parametrize("barrier", [False, True])
def test_a_stage_has_its_profile(three_executors: SparkSession, of: Any, barrier: bool) -> None:
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    # A function of this function travels by value: executors do not have this module.
    def partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext, TaskContext

        context = TaskContext.get()
        assert context is not None
        is_gang = isinstance(context, BarrierTaskContext)
        num_peers = len(context.getTaskInfos()) if isinstance(context, BarrierTaskContext) else 0
        for batch in batches:
            columns = {"id": batch.column(0), "is_gang": [is_gang], "num_peers": [num_peers]}
            yield pa.RecordBatch.from_pydict(columns)

    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(1)).build
    frame = three_executors.range(3, numPartitions=3)
    schema = "id long, is_gang boolean, num_peers long"
    assert has_profiles(three_executors)
    rows = collect_stage(of(frame), partition, schema, barrier=barrier, profile=profile)
    expected = [(n, True, 3) if barrier else (n, False, 0) for n in range(3)]
    assert [tuple(row) for row in rows] == expected
    store = three_executors._jsc.sc().statusStore()
    last = store.jobsList(None).apply(0)
    stage = store.lastStageAttempt(last.stageIds().apply(0))
    assert stage.resourceProfileId() == profile.id != 0
    plain = collect_stage(of(frame), partition, schema, barrier=barrier)
    assert plain == rows


@pytest.mark.slow
def test_older_spark_tells_of_failed_tasks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("no")

    context = spark.sparkContext
    for tag in ("failing", "other"):
        context.addJobTag(tag)
        with pytest.raises(PySparkException):
            spark.range(1, numPartitions=1).mapInArrow(fail, "id long").collect()
        context.clearJobTags()

    class OlderJava(Older):
        def statusTracker(self) -> Any:
            return Older(self._own.statusTracker())

    found = failed_tasks(spark, "failing")
    assert len(found) == 1 and "ValueError: no" in found[0].error
    monkeypatch.setattr(ClassicContext, "_java", OlderJava(context._jsc.sc()))
    assert failed_tasks(spark, "failing") == found


@pytest.mark.slow
def test_scala_is_that_of_the_jars(spark: SparkSession) -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    (core,) = jars.glob("spark-core_*.jar")
    assert core.name.startswith(f"spark-core_{scala_version(spark)}-")


def save_older(instance: Any, path: str, sc: SparkContext, extraMetadata: Any = None) -> None:
    """As `DefaultParamsWriter.saveMetadata` of Spark 3.5.9 takes and writes it."""
    text = DefaultParamsWriter._get_metadata_to_save(instance, sc, extraMetadata)
    sc.parallelize([text], 1).saveAsTextFile(f"{path}/metadata")


@pytest.mark.slow
@pytest.mark.parametrize("is_older", [False, True])
def test_metadata_of_stages_is_written_and_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    if is_older:
        monkeypatch.setattr(DefaultParamsWriter, "saveMetadata", staticmethod(save_older))
    stage, owner = Binarizer(threshold=0.5), owner_of_stages(spark)
    DefaultParamsWriter.saveMetadata(stage, str(tmp_path), owner, {"more": 7})
    metadata = DefaultParamsReader.loadMetadata(str(tmp_path), owner)
    assert (metadata["paramMap"], metadata["more"]) == ({"threshold": 0.5}, 7)


class ConnectSession:
    """A client of Spark Connect 3.5."""

    __module__ = "pyspark.sql.connect.session"
    version = "3.5.9"

    def range(self, end: int) -> Older:
        return Older(None)


def test_connect_without_profiles_is_known() -> None:
    session: Any = ConnectSession()
    assert not has_profiles(session)
    assert scala_version(session) == "2.12"


def test_streams_that_spark_cannot_read_are_refused() -> None:
    session: Any = ConnectSession()
    with pytest.raises(ConfigError, match=r"watch reads .* needs Spark 4.0.*3.5.9.* or drift,"):
        capabilities.check_streams(session, "watch", "drift")


def test_stages_that_connect_cannot_save_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DefaultParamsWriter, "saveMetadata", staticmethod(save_older))
    session: Any = ConnectSession()
    with pytest.raises(ConfigError, match=r"Spark Connect needs PySpark 4.0 or newer"):
        owner_of_stages(session)
