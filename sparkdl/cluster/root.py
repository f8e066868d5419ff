"""Runs on the driver. The folder of all runs and models."""

import os
import sys

from sparkdl import config
from sparkdl.files import storage


def resolve_root(root: str | os.PathLike[str] | None = None) -> str:
    """Return the folder of all runs and models: the argument, or the folder that `launch` uses.

    Example:
        >>> resolve_root("/data/runs")
        '/data/runs'
    """
    # A program that has not imported PySpark has no session.
    if root is None and "pyspark.sql" in sys.modules:
        from sparkdl.cluster.spark import SparkCluster, active_session

        if active := active_session():
            root = SparkCluster(active).root()
    return storage.absolute(config.resolve("root", root) or "runs")
