"""The work of `benchmarks/hosts.py`, for a driver of `tests.clusters.driver`."""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
from pyspark.sql import SparkSession

from sparkdl import experiment

TRIALS = 30
SLEEP_S = 0.2
WARM_UP, STEPS = 3, 20
ROWS = 2_000_000
WIDTH = 20


def _sleep(i: int) -> None:
    time.sleep(SLEEP_S)


def _task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(SLEEP_S)
        yield batch


def launch(spark: SparkSession) -> dict[str, float]:
    """Time sleeping trials, and as many sleeping tasks of one Spark job."""
    begun = time.perf_counter()
    spark.range(TRIALS, numPartitions=TRIALS).mapInArrow(_task, "id long").collect()
    floor_s = time.perf_counter() - begun
    begun = time.perf_counter()
    experiment.launch(_sleep, {"i": list(range(TRIALS))}, progress=False).raise_for_failures()
    return {"floor_s": floor_s, "launch_s": time.perf_counter() - begun}


def _first_line() -> dict[str, float]:
    return {"first_line_s": time.time()}


def gang(spark: SparkSession) -> dict[str, float]:
    """Time the start of a gang of three, to the first line of the function."""
    begun = time.time()
    run = experiment.allreduce(_first_line, num_workers=3, progress=False)
    return {"start_s": run.result["first_line_s"] - begun}


def _reduce(count: int) -> dict[str, float]:
    import numpy as np

    from sparkdl import distribute

    values, seconds = np.ones(count, np.float32), []
    for _ in range(WARM_UP + STEPS):
        distribute.barrier()
        begun = time.perf_counter()
        distribute.allreduce(values)
        seconds.append(time.perf_counter() - begun)
    return {"step_s": median(seconds[WARM_UP:])}


def ring(spark: SparkSession, count: int) -> dict[str, float]:
    """Time the mean of float32 numbers over two ranks."""
    run = experiment.allreduce(partial(_reduce, count), num_workers=2, progress=False)
    return dict(run.result)


def _drain() -> dict[str, float]:
    from sparkdl import data

    columns = [f"c{n}" for n in range(WIDTH)]
    rows = data.dataset(
        batch_size_per_worker=1024, cache=False, feature_cols=columns, label_cols="y"
    )
    begun = time.perf_counter()
    count = sum(int(labels.shape[0]) for _, labels in rows)
    return {"seconds": time.perf_counter() - begun, "count": count}


def feed(spark: SparkSession, folder: str) -> dict[str, float]:
    """Time the rows of a Parquet file on their way into one training process."""
    path = Path(folder, "narrow.parquet")
    if not path.exists():
        columns = [f"cast(rand({n}) as float) c{n}" for n in range(WIDTH)]
        rows = spark.range(ROWS, numPartitions=1).selectExpr(*columns, "cast(id % 10 as int) y")
        rows.write.parquet(str(path))
    run = experiment.launch(_drain, data=spark.read.parquet(str(path)), progress=False)
    run.raise_for_failures()
    found = run.trials[0].outputs
    if found["count"] != ROWS:
        raise RuntimeError(f"{json.dumps(found)}: expected {ROWS} rows")
    return {"rows_per_s": found["count"] / found["seconds"]}
