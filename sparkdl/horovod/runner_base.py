"""Runs on the driver. Databricks' module `sparkdl.horovod.runner_base`."""

from sparkdl.databricks.horovod_runner import HorovodRunner

__all__ = ["HorovodRunner"]
