"""Runs on the driver, and in a Spark task.

Check that the Python of Spark's workers can import sparkdl.
"""

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sparkdl.cluster.spark_context import ClassicContext
from sparkdl.cluster.spark_errors import job_failed
from sparkdl.spark.python import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@lru_cache(maxsize=1)
def check_worker_python(spark: "SparkSession") -> None:
    """Validate the `python3` of the executors' PATH, where it runs because nothing else is chosen.

    A Spark job with one task imports sparkdl, once for a session: the job that computes the
    predictions would end with the traceback of Spark's worker.

    Args:
        spark: the session of the rows.

    Raises:
        PreflightError: if the executors lack sparkdl or run another Python.
    """
    context = ClassicContext.of(spark)
    if context is None or "PYSPARK_PYTHON" in os.environ or context.master.startswith("local"):
        return
    try:
        map_in_arrow(spark.range(0, 1, 1, 1), _same, "id long").collect()
    except Exception as exc:  # noqa: BLE001 What else fails, the job with the rows says itself.
        job_failed(exc)


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    """Return the batches. A function of this module, which workers import to call the function."""
    return batches
