"""Runs on the driver. Count the processes of a distributed program, from Spark's settings."""

import os

from sparkdl.cluster.spark import SparkCluster, num_slots
from sparkdl.cluster.spark_settings import SparkSettings
from sparkdl.errors import ConfigError
from sparkdl.hops.absent_names import absent_names

__all__ = ["num_executors", "num_param_servers", "num_slots"]

__getattr__ = absent_names(__name__, __all__)


def num_executors() -> int:
    """Return the number of executors: the number of processes of `experiment.mirrored`.

    The number is `spark.executor.instances`, with dynamic allocation its largest number of
    executors, on a `local-cluster` master the number in the master URL, and 1 on other local
    masters. Where Spark does not tell, each slot counts as an executor.
    """
    cluster = SparkCluster()
    settings = SparkSettings(cluster.conf, cluster.master)
    most = cluster.conf("spark.dynamicAllocation.maxExecutors")
    if settings.adds_executors and most:
        return int(most)
    return settings.num_executors or (1 if settings.is_embedded else num_slots(waits=True))


def num_param_servers() -> int:
    """Return the number of parameter servers: the environment variable `NUM_TF_PS`, or 0.

    Raises:
        ConfigError: if the variable is not a whole number.

    Example:
        >>> num_param_servers()
        0
    """
    text = os.environ.get("NUM_TF_PS") or "0"
    if not text.isdigit():
        raise ConfigError(f"NUM_TF_PS is {text!r}; expected the number of parameter servers.")
    return int(text)
