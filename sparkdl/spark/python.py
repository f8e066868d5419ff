"""Runs on the driver. Choose the Python of Spark's workers, and run Python code in Spark tasks.

Spark's workers run the `python3` of the PATH by default, which has no sparkdl where the virtual
environment of the driver is not activated.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sparkdl.errors import ConfigError
from sparkdl.spark.versions import check_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def use_driver_python(spark: "SparkSession") -> None:
    """Let the workers of a session run the driver's Python, if they are on the driver's host.

    `PYSPARK_PYTHON` has priority. Executors on other hosts may have another path to their Python,
    and a session of Spark Connect has the Python of its server.

    Args:
        spark: the session; later jobs of its application are concerned too.
    """
    context = getattr(spark, "_sc", None)
    if context is None or "PYSPARK_PYTHON" in os.environ:
        return
    if context.master.startswith("local"):  # `local` and `local-cluster`.
        context.pythonExec = sys.executable


def chosen_python() -> str:
    """Return a sentence about the choice of the Python of Spark's workers.

    Example:
        >>> os.environ["PYSPARK_PYTHON"] = "/opt/python"
        >>> chosen_python()
        'PYSPARK_PYTHON (spark.pyspark.python) is /opt/python, and the driver runs ...python...'
    """
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen == sys.executable:
        return f"The executors run the Python of the driver, {chosen}."
    what = f"is {chosen}" if chosen else "is not set"
    return f"PYSPARK_PYTHON (spark.pyspark.python) {what}, and the driver runs {sys.executable}."


def map_in_arrow(
    frame: "DataFrame", function: Callable[[Iterator[Any]], Iterator[Any]], schema: Any
) -> "DataFrame":
    """Return what a function of sparkdl yields for the record batches of each partition.

    Args:
        frame: a DataFrame of the user's session.
        function: takes and yields record batches of Arrow.
        schema: the columns of the result, as for `DataFrame.mapInArrow`.

    Raises:
        ConfigError: if Spark cannot pass a column of the result through Python, or if its version
            is not supported.

    Example:
        >>> from pyspark.sql import SparkSession
        >>> frame = SparkSession.builder.getOrCreate().range(2)
        >>> map_in_arrow(frame, lambda batches: batches, "id long").collect()
        [Row(id=0), Row(id=1)]
    """
    check_session(frame.sparkSession)
    from pyspark.errors import PySparkException

    use_driver_python(frame.sparkSession)
    try:
        return frame.mapInArrow(function, schema)
    except PySparkException as exc:
        raise _column_error(frame, function, schema) or exc from None


def _column_error(frame: "DataFrame", function: Any, schema: Any) -> ConfigError | None:
    """Return an error for the column that Spark cannot pass through Python; None without one.

    PySpark's own message lists all columns.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    for field in () if isinstance(schema, str) else schema:
        try:
            frame.mapInArrow(function, StructType([field]))
        except PySparkException:
            return ConfigError(
                f"column {field.name!r} is {field.dataType.simpleString()}, which Spark does not "
                "pass through Python. Drop it, or cast it, for example to a string."
            )
    return None
