"""Runs on the driver. Read from the plans of queries what Spark Connect does not show otherwise.

A plan is made without a job: a job would wait for a slot behind the running trials.
"""

import re
from typing import TYPE_CHECKING

from sparkdl.errors import SlotsError
from sparkdl.host.os_processes import user_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def default_parallelism(spark: "SparkSession") -> int:
    """Return the number of partitions into which Spark divides a range.

    Raises:
        SlotsError: if Spark does not tell.
    """
    plan = _plan(spark, "SELECT * FROM range(1048576)")
    if match := re.search(r"splits=(?:Some\()?(\d+)", plan):
        return int(match[1])
    raise SlotsError(
        "Spark Connect does not show how many tasks run at once. Set SPARKDL_SLOTS to that number."
    )


def user_of_connect(spark: "SparkSession") -> str:
    """Return the name of the user for whom Spark runs queries, else of the user of this process."""
    match = re.search(r"(?m)^.*\[(\S+) AS current_user\(\)", _plan(spark, "SELECT current_user()"))
    return match[1] if match else user_name()


def _plan(spark: "SparkSession", query: str) -> str:
    plan: str = spark.sql(f"EXPLAIN {query}").collect()[0][0]
    return plan
