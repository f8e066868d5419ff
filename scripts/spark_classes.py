"""Write an archive of the classes that Spark loads, with which the JVMs of the tests start faster.

    python scripts/spark_classes.py .venv/spark-classes.jsa

A JVM of the same version and class path takes them from there with `-XX:SharedArchiveFile`, and
saves nearly half of the processor time of its start; any other JVM ignores the file. The format is
Java's, see "Dynamic CDS archive" (JEP 350).
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

# Directories on the class path must be empty, or missing: Spark's own folder of settings is.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"


def main(archive: Path) -> None:
    """Run what most tests do in one JVM, which writes its classes to the file when it ends."""
    os.environ.pop("SPARK_CONF_DIR", None)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={archive}"
    builder = SparkSession.builder.master("local[2]")
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = builder.config(map=quiet).getOrCreate()
    exercise(spark)
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    if not archive.exists():
        print(f"Java wrote no {archive}: the tests' JVMs start slower.", file=sys.stderr)


def exercise(spark: SparkSession) -> None:
    """Run jobs on rows, Arrow batches, barriers and files."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    context = spark.sparkContext
    context.setLogLevel("ERROR")
    numbers = context.broadcast([1, 2])
    context.parallelize(range(4), 2).mapPartitions(lambda _: numbers.value).collect()
    context.parallelize([1], 1).barrier().mapPartitions(lambda rows: rows).collect()
    schema = "n int, s string, v array<float>"
    rows = spark.createDataFrame([(1, "a", [0.5]), (2, "b", [1.5])], schema)
    with tempfile.TemporaryDirectory() as folder:
        rows.repartition(2).write.parquet(f"{folder}/rows")
        read = spark.read.parquet(f"{folder}/rows")
        read.mapInArrow(same, read.schema).groupBy("s").count().orderBy("s").collect()
        read.mapInArrow(same, read.schema, barrier=True).toPandas()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
