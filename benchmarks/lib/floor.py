"""The Spark session and the floor that all contenders of a benchmark share.

The module runs in the environments of sparkdl and of its peers, so it imports only pyspark.
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
    """Return a session of embedded Spark with `SLOTS` slots and without its web interface."""
    builder = SparkSession.builder.master(f"local[{SLOTS}]").appName(name)
    builder = builder.config("spark.ui.enabled", "false")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


@contextmanager
def own_workers(spark: SparkSession) -> Iterator[None]:
    """Run the jobs of this block in Python workers that no other job uses.

    Spark collects garbage in a worker after each task, which takes longer the more modules a
    contender has imported. In shared workers, the floor would pay for its contenders.
    """
    environment = spark.sparkContext.environment  # Jobs with an equal environment share workers.
    environment["BENCHMARK_FLOOR"] = "1"
    try:
        yield
    finally:
        del environment["BENCHMARK_FLOOR"]


def sleep_in_one_job(spark: SparkSession, trials: int) -> None:
    """Run the floor: all sleeps are tasks of one plain Spark job."""

    # An inner function is pickled by value: the Python workers cannot import this module.
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(SLEEP_S)
            yield batch

    with own_workers(spark):
        rows = spark.range(trials, numPartitions=trials).mapInArrow(task, "id long").collect()
    if len(rows) != trials:
        raise RuntimeError(f"the floor gave {len(rows)} rows, expected {trials}")


def time_round(contenders: Contenders, number: int) -> dict[str, float]:
    """Return the wall time of each contender in seconds; odd rounds run in reverse order."""
    for run in contenders.values():
        run(SLOTS)  # Spark ends Python workers that are idle for a minute, so each round warms up.
    names = list(contenders)
    seconds = {}
    for name in names if number % 2 == 0 else reversed(names):
        begun = time.perf_counter()
        contenders[name](TRIALS)
        seconds[name] = time.perf_counter() - begun
    return seconds
