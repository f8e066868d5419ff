"""Runs on the driver and in Spark tasks. Operations that older versions of Spark do otherwise.

This is the only module that knows them. It looks for an operation by its name, and has the way of
Spark 3.5 beside it: a version in between, or one of a vendor, needs no line here.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sparkdl.errors import ConfigError
from sparkdl.spark.connect import is_of_connect
from sparkdl.spark.python import map_in_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    _Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


# ---- stages


def has_profiles(spark: "SparkSession") -> bool:
    """Return True if `collect_stage` takes a resource profile; Spark Connect does so since 4.0."""
    return not is_of_connect(spark) or _takes_profile(spark.range(0))


def collect_stage(
    frame: "DataFrame",
    task: "_Task",
    schema: "StructType | str",
    *,
    barrier: bool = False,
    profile: Any = None,
) -> list[Any]:
    """Run a task for each partition, and return the rows that the tasks yielded.

    Args:
        frame: the DataFrame.
        task: takes and yields record batches of Arrow.
        schema: the columns of the rows.
        barrier: start all tasks together.
        profile: the `ResourceProfile` of the tasks; None for Spark's default.
    """
    rows: list[Any]
    if profile is None:
        rows = frame.mapInArrow(task, schema, barrier=barrier).collect()
    elif _takes_profile(frame):
        rows = frame.mapInArrow(task, schema, barrier=barrier, profile=profile).collect()
    else:
        # The profile of an RDD is that of its whole stage, of which the tasks are a part.
        rdd = frame.mapInArrow(task, schema, barrier=barrier).rdd
        rows = rdd.withResources(profile).collect()
    return rows


def _takes_profile(frame: "DataFrame") -> bool:
    return "profile" in inspect.signature(frame.mapInArrow).parameters


# ---- partitions


def repartition_by_id(frame: "DataFrame", num_partitions: int, number: "Column") -> "DataFrame":
    """Return the rows in the partitions whose numbers a column has.

    Args:
        frame: the rows.
        num_partitions: number of partitions of the result.
        number: the number of each row's partition, from 0 to `num_partitions - 1`.
    """
    from pyspark.sql import functions as F

    if hasattr(frame, "repartitionById"):  # Spark 4.1.
        return frame.repartitionById(num_partitions, number)
    # Spark puts a row into the partition `pmod(hash(key), num_partitions)`.
    keys = F.array(*[F.lit(key) for key in keys_of_partitions(num_partitions)])
    return frame.repartition(num_partitions, F.get(keys, number))


def keys_of_partitions(num_partitions: int) -> list[int]:
    """Return an integer for each partition that Spark's hash puts into the partition.

    Example:
        >>> keys_of_partitions(3)
        [0, 1, 11]
    """
    keys: dict[int, int] = {}
    key = 0
    while len(keys) < num_partitions:
        keys.setdefault(hash_of(key) % num_partitions, key)
        key += 1
    return [keys[number] for number in range(num_partitions)]


def hash_of(key: int) -> int:
    """Return what Spark's function `hash` returns for an integer: Murmur3 of 32 bits, seed 42.

    Example:
        >>> hash_of(0)
        933211791
    """
    mask = 0xFFFFFFFF

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> 32 - bits) & mask

    mixed = rotated((key & mask) * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    value = (rotated(42 ^ mixed, 13) * 5 + 0xE6546B64) & mask
    value ^= 4  # The number of bytes.
    value = (value ^ value >> 16) * 0x85EBCA6B & mask
    value = (value ^ value >> 13) * 0xC2B2AE35 & mask
    value ^= value >> 16
    return value - (1 << 32) if value >> 31 else value


# ---- Arrow


def to_arrow(frame: "DataFrame") -> "pa.Table":
    """Return the rows of a DataFrame as a table of Arrow."""
    if hasattr(frame, "toArrow"):  # Spark 4.0.
        return frame.toArrow()
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    table: pa.Table
    if is_of_connect(frame):
        client = frame.sparkSession.client
        table, _ = client.to_table(frame._plan.to_proto(client))
    else:
        batches = frame._collect_as_arrow()
        table = pa.Table.from_batches(batches, batches[0].schema if batches else schema)
    return table.cast(schema)


def apply_in_arrow(
    frame: "DataFrame", key: str, function: "Callable[[pa.Table], pa.Table]", schema: "StructType"
) -> "DataFrame":
    """Return what a function returns for the rows of each group.

    Args:
        frame: the rows.
        key: the column whose values are the groups.
        function: takes and returns a table of Arrow.
        schema: the columns of the result.
    """
    # applyInArrow came with Spark 4.0, which takes no large texts from it.
    return map_in_arrow(frame.repartition(key), _EachGroup(key, function), schema)


class _EachGroup:
    """Apply a function to each group of a partition that has all rows of its groups."""

    def __init__(self, key: str, function: "Callable[[pa.Table], pa.Table]") -> None:
        self._key = key
        self._function = function

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = list(batches)
        if not rows:
            return
        table = pa.Table.from_batches(rows)
        groups = table[self._key].combine_chunks().dictionary_encode("encode")
        for number in range(len(groups.dictionary)):
            group = table.filter(pc.equal(groups.indices, number))
            yield from self._function(group).to_batches()


# ---- types


def unknown_types(frame: "DataFrame") -> dict[str, str]:
    """Return the columns of types that this PySpark does not know, with their types.

    PySpark 3.5 cannot tell the schema of a DataFrame with a calendar interval.
    """
    from pyspark.errors import PySparkValueError

    try:
        _ = frame.schema
    except (PySparkValueError, AssertionError):  # PySpark 3.5.0 fails to word its own error.
        if is_of_connect(frame):
            raise
        fields = json.loads(frame._jdf.schema().json())["fields"]
        unknown = '"interval"'  # Also as the elements of arrays.
        return {f["name"]: "interval" for f in fields if unknown in json.dumps(f["type"])}
    return {}


def parse_type(text: str) -> "DataType":
    """Return the type of Spark that a text describes, such as `array<float>` or `a int, b float`.

    Raises:
        PySparkException: if the text is no type.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    if hasattr(DataType, "fromDDL"):  # Spark 4.0.
        return DataType.fromDDL(text)
    spark = SparkSession.active()
    kind: DataType
    try:
        kind = spark.sql(f"SELECT CAST(NULL AS {text})").schema[0].dataType
    except PySparkException:
        kind = spark.createDataFrame([], text).schema
    return kind


# ---- saved stages of Spark ML


def owner_of_stages(spark: "SparkSession") -> Any:
    """Return what Spark ML writes and reads the metadata of stages with.

    It is the session, or before Spark 4.0 its SparkContext.

    Raises:
        ConfigError: if Spark ML needs a SparkContext, which Spark Connect does not have.
    """
    from pyspark.ml.util import DefaultParamsWriter

    taken = inspect.signature(DefaultParamsWriter.saveMetadata).parameters["sc"].annotation
    if "SparkSession" in str(taken):
        return spark
    if is_of_connect(spark):
        raise ConfigError(
            "saving and loading stages of Spark ML through Spark Connect needs PySpark 4.0 or "
            f"newer; this is PySpark {_client()}. Use a newer PySpark, or a session without Spark "
            "Connect."
        )
    return spark.sparkContext


# ---- sources


def check_streams(spark: "SparkSession", verb: str, instead: str) -> None:
    """Validate that Spark reads streams from sources that are written in Python.

    Args:
        spark: the session.
        verb: the verb that needs them.
        instead: what does without them.

    Raises:
        ConfigError: if Spark does not.
    """
    if not hasattr(type(spark), "dataSource"):
        raise ConfigError(
            f"{verb} reads a stream from a source that is written in Python, for which it needs "
            f"Spark 4.0 or newer; this is PySpark {_client()} with Spark {spark.version}. Use a "
            f"newer Spark, or {instead}, which read what there is now."
        )


def _client() -> str:
    import pyspark

    return str(pyspark.__version__)


def scala_version(spark: "SparkSession") -> str:
    """Return the version of Scala in the names of Spark's packages, such as `2.13`."""
    if not is_of_connect(spark):
        number = str(spark._jvm.scala.util.Properties.versionNumberString())
        return number.rpartition(".")[0]
    # Spark Connect does not tell; the usual builds of Spark 3 are those for 2.12.
    return "2.12" if spark.version.startswith("3.") else "2.13"
