"""What both sides of a benchmark share: a Spark session, and the floor under every contender.

It runs in the environment of sparkdl and in that of its peers, so it imports pyspark alone.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import SparkSession

TRIALS = 40
SLEEP_S = 0.2
SLOTS = 2
IDEAL_S = TRIALS * SLEEP_S / SLOTS

Contenders = Mapping[str, Callable[[int], None]]


def session(name: str) -> SparkSession:
    """A session of embedded Spark with `SLOTS` slots, and nothing that listens to the network."""
    builder = SparkSession.builder.master(f"local[{SLOTS}]").appName(name)
    builder = builder.config("spark.ui.enabled", "false")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


@contextmanager
def own_workers(spark: SparkSession) -> Iterator[None]:
    """Run what is submitted here in Python workers that no other job gets.

    Spark collects garbage in a worker after each task, which takes the longer the more a
    contender has imported there: in shared workers the floor would pay for its contenders.
    """
    environment = spark.sparkContext.environment  # Workers are shared by jobs where it is equal.
    environment["BENCHMARK_FLOOR"] = "1"
    try:
        yield
    finally:
        del environment["BENCHMARK_FLOOR"]


def sleep_in_one_job(spark: SparkSession, trials: int) -> None:
    """The floor: all sleeps as the tasks of one Spark job, with nothing around them."""

    # An inner function travels by value: the Python workers cannot import this module.
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(SLEEP_S)
            yield batch

    with own_workers(spark):
        rows = spark.range(trials, numPartitions=trials).mapInArrow(task, "id long").collect()
    if len(rows) != trials:
        raise RuntimeError(f"the floor gave {len(rows)} rows, expected {trials}")


def time_round(contenders: Contenders, number: int) -> dict[str, float]:
    """The wall time of each contender in seconds; every other round goes backwards."""
    for run in contenders.values():
        run(SLOTS)  # Spark ends Python workers that were idle for a minute: each round warms up.
    names = list(contenders)
    seconds = {}
    for name in names if number % 2 == 0 else reversed(names):
        begun = time.perf_counter()
        contenders[name](TRIALS)
        seconds[name] = time.perf_counter() - begun
    return seconds
