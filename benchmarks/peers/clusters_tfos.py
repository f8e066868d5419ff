"""TensorFlowOnSpark's part of `clusters.py`, which starts it in an environment of its own.

The program writes JSON lines: first the versions of its packages, then, for each shape that it
reads, the duration of each phase. `clusters.py` imports the measured program from here.
"""

import importlib.metadata
import itertools
import json
import logging
import sys
import time
from typing import Any

from lib.peer import own_stdout
from pyspark.sql import SparkSession

BATCH = 1024
PARTITIONS = 2

# Floats in a row, number of rows, and True for a DataFrame.
SHAPES = {
    "784 floats": (784, 40_000, False),
    "20 floats": (20, 200_000, False),
    "784 floats, DataFrame": (784, 40_000, True),
    "20 floats, DataFrame": (20, 200_000, True),
}


def session(master: str) -> SparkSession:
    """Return a new Spark session."""
    builder = SparkSession.builder.master(master).appName("clusters")
    builder = builder.config("spark.ui.enabled", "false").config("spark.executor.memory", "2g")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def drain(args: Any, ctx: Any) -> None:
    """Read all rows with `next_batch`."""
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(BATCH)


def rows_of(spark: SparkSession, shape: str) -> Any:
    """Return an RDD of lists of floats, or a DataFrame of the lists, cached by Spark."""
    width, rows, is_frame = SHAPES[shape]
    rows_per_partition = rows // PARTITIONS

    def random_rows(number: int, _: Any) -> Any:
        import numpy as np

        random = np.random.default_rng(number)
        for _ in range(rows_per_partition // 1000):
            yield from random.random((1000, width)).tolist()

    numbers = spark.sparkContext.parallelize(range(PARTITIONS), PARTITIONS)
    all_rows = numbers.mapPartitionsWithIndex(random_rows)
    if is_frame:
        all_rows = all_rows.map(lambda row: (row,)).toDF("x array<double>")
    cached = all_rows.cache()
    cached.count()
    return cached


def measure(clusters: Any, spark: SparkSession, shape: str) -> dict[str, float]:
    """Start a cluster of one node, feed the node, and shut the cluster down.

    Args:
        clusters: the module `TFCluster`.
        spark: the session.
        shape: a key of `SHAPES`.
    """
    rows, times = rows_of(spark, shape), [time.monotonic()]
    mode = clusters.InputMode.SPARK
    cluster = clusters.run(spark.sparkContext, drain, [], 1, 0, input_mode=mode)
    times.append(time.monotonic())
    # TensorFlowOnSpark takes RDDs only.
    takes_frames = clusters.__name__.startswith("sparkdl")
    cluster.train(rows if takes_frames or not hasattr(rows, "rdd") else rows.rdd, 1)
    times.append(time.monotonic())
    cluster.shutdown()
    times.append(time.monotonic())
    rows.unpersist(blocking=True)
    start_s, feed_s, shutdown_s = (b - a for a, b in itertools.pairwise(times))
    rate = SHAPES[shape][1] / feed_s
    return {"start_s": start_s, "rows_per_s": rate, "shutdown_s": shutdown_s}


def main() -> None:
    """Measure a shape for each line of standard input; the argument is the Spark master."""
    from tensorflowonspark import TFCluster

    pipe = own_stdout()
    logging.getLogger("tensorflowonspark").setLevel(
        logging.WARNING
    )  # It logs the keys of its queues.
    spark = session(sys.argv[1])
    packages = ("tensorflowonspark", "pyspark", "tensorflow-cpu")
    print(json.dumps({name: importlib.metadata.version(name) for name in packages}), file=pipe)
    for line in sys.stdin:
        print(json.dumps(measure(TFCluster, spark, line.strip())), file=pipe)
    spark.stop()


if __name__ == "__main__":
    main()
