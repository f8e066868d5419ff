"""The time until the ranks of a gang begin, beside a plain barrier job of as many tasks."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from sparkdl import experiment

STARTS = 5

Row = dict[str, Any]


def first_line() -> float:
    """Return the time at which the function is called; the import names the framework."""
    called_s = time.time()
    import keras  # noqa: F401

    return called_s


def start_through_spark(spark: SparkSession, root: str, size: int) -> float:
    """Return the seconds from the call of `allreduce` to the first line of the chief."""
    called_s = time.time()
    run = experiment.allreduce(first_line, num_workers=size, spark=spark, root=root, progress=False)
    return float(run.result) - called_s


def start_in_plain_spark(spark: SparkSession, size: int) -> float:
    """Return the seconds from the call to the last first line of a plain barrier job."""

    # An inner function is pickled by value: the Python workers cannot import this module.
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        called_s = time.time()
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"called_s": [called_s]})

    called_s = time.time()
    numbers = spark.range(size, numPartitions=size)
    rows = numbers.mapInArrow(task, "called_s double", barrier=True).collect()
    return max(float(row["called_s"]) for row in rows) - called_s


def measure_starts(
    session: Callable[[str], SparkSession], sizes: Sequence[int], root: str, number: int
) -> list[Row]:
    """Return a row for each warm start of a gang, and of a plain barrier job.

    Args:
        session: returns a new Spark session on a master.
        sizes: the numbers of ranks.
        root: the folder of the runs.
        number: the number of the round.
    """
    rows = []
    for size in sizes:
        spark = session(f"local-cluster[2,{(size + 1) // 2},1024]")
        starts: dict[str, Callable[[], float]] = {
            "allreduce": partial(start_through_spark, spark, root, size),
            "plain barrier job": partial(start_in_plain_spark, spark, size),
        }
        try:
            for start in starts.values():
                start()
            for _ in range(STARTS):
                for name, start in starts.items():
                    load, first_line_s = os.getloadavg()[0], start()
                    row = {"name": name, "size": size, "round": number, "load": load}
                    rows.append({**row, "first_line_s": first_line_s})
                    line = f"{name} of {size}: {first_line_s:.2f} s, load {load:.1f}"
                    print(line, file=sys.stderr)
        finally:
            spark.stop()
    return rows


def size_rows(rows: list[Row]) -> list[Row]:
    """Return the seconds to the first line for each size of a gang, and of a plain barrier job."""
    found = []
    for name, size in dict.fromkeys((row["name"], row["size"]) for row in rows):
        mine = [row for row in rows if (row["name"], row["size"]) == (name, size)]
        seconds = [row["first_line_s"] for row in mine]
        found.append(
            {
                "name": f"{name} of {size}, warm",
                "size": size,
                "first_line_s": round(median(seconds), 3),
                "min_s": round(min(seconds), 3),
                "calls": len(mine),
                "load_before": [round(row["load"], 2) for row in mine],
            }
        )
    return found
