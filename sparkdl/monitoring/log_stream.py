"""Runs on the driver. A log of a model server as a DataFrame of lines, still or streaming."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.monitoring.logs.counting import COUNTS_SCHEMA, TICK
from sparkdl.monitoring.logs.folder import (
    LINES_SCHEMA,
    PartReader,
    file_ends,
    hour_of,
    parts,
)
from sparkdl.serving.kafka_topic import SCHEME, KafkaTopic
from sparkdl.spark.capabilities import scala_version
from sparkdl.spark.python import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000
_COLUMNS = [column.split() for column in COUNTS_SCHEMA.split(", ")]


def check_source(source: Any) -> str:
    """Return the source of a log.

    Raises:
        ConfigError: if the folder does not exist, or the URL names no topic.
    """
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"the log is {source!r}; expected a folder, or 'kafka://host:9092/topic'."
        )
    text = str(os.fspath(source))
    if text.startswith(SCHEME):
        KafkaTopic.of(text)
        return text
    folder = storage.absolute(text)
    if not storage.exists(folder):
        raise ConfigError(f"the log {folder} does not exist. Is the server's log= elsewhere?")
    return folder


def lines_of(
    spark: "SparkSession",
    source: str,
    options: Mapping[str, Any] | None = None,
    is_stream: bool = False,
    since_ms: int = 0,
) -> "DataFrame":
    """Return the lines of a log.

    Args:
        spark: the session.
        source: the log, see `check_source`.
        options: further options of Spark's source for Kafka.
        is_stream: return a stream.
        since_ms: the time from which on a stream reads a folder, in milliseconds since 1970.
            Lines of the day before, and earlier ones of Kafka, are read, too.

    Returns:
        A DataFrame with the columns `value`, `file` and `offset`; from Kafka with `value`,
        `headers`, `timestamp`, `partition` and `offset`.

    Raises:
        ConfigError: if Spark has no source for Kafka.
    """
    reader = spark.readStream if is_stream else spark.read
    if not source.startswith(SCHEME):
        if not is_stream:
            return _present_lines(spark, source)
        # Versions of Spark without these sources have no module for them.
        from sparkdl.monitoring.logs.folder_source import FORMAT, LogFolder

        _register(spark, LogFolder)
        # The folders of other systems may be named by the hour of another time zone.
        since = hour_of(since_ms - DAY_MS) if since_ms > DAY_MS else ""
        return reader.format(FORMAT).options(path=source, since=since).load()
    topic = KafkaTopic.of(source)
    topic_options = {"kafka.bootstrap.servers": topic.brokers, "subscribe": topic.name}
    topic_options["includeHeaders"] = "true"
    all_options = {"startingOffsets": "earliest", **(options or {}), **topic_options}
    try:
        frame = reader.format("kafka").options(**all_options).load()
    except AnalysisException as exc:
        if "kafka" not in str(exc).lower():
            raise
        package = f"spark-sql-kafka-0-10_{scala_version(spark)}:{spark.version}"
        raise ConfigError(
            "Spark has no source for Kafka. Start it with the package of its version: spark-submit "
            f"--packages org.apache.spark:{package}"
        ) from exc
    return frame.select("value", "headers", "timestamp", "partition", "offset")


def with_ticks(counts: "DataFrame", folder: str) -> "DataFrame":
    """Return a stream of counts in which ticks end windows, too.

    Args:
        counts: the counts, see `LogCounter`.
        folder: the folder of the ticks.
    """
    from sparkdl.monitoring.logs.tick_source import FORMAT, Ticks

    spark = counts.sparkSession
    _register(spark, Ticks)
    ticks = spark.readStream.format(FORMAT).option("path", folder).load()
    values = {"time": F.timestamp_millis("ms"), "feature": F.lit(TICK)}
    values |= {"part": F.lit("n"), "bin": F.lit(0), "num": F.lit(0)}
    columns = [values.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _COLUMNS]
    return counts.union(ticks.select(*columns))


def _present_lines(spark: "SparkSession", url: str) -> "DataFrame":
    """Return the lines that the files of a folder have now."""
    files = parts(url, {}, file_ends(url, {}, ""))
    numbers = spark.range(len(files), numPartitions=max(1, len(files)))
    return map_in_arrow(numbers, PartReader(files), LINES_SCHEMA)


def _register(spark: "SparkSession", source: Any) -> None:
    """Register a source with a session, which warns if it is registered twice."""
    mark = f"spark.sparkdl.source.{source.name()}"
    if spark.conf.get(mark, None) is None:
        spark.dataSource.register(source)
        spark.conf.set(mark, "registered")
