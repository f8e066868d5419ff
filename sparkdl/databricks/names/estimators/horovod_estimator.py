"""Runs anywhere. Databricks' module `sparkdl.estimators.horovod_estimator`: not here."""

from sparkdl.databricks.refusals import what_to_use

raise ImportError(what_to_use("sparkdl.estimators.horovod_estimator"))
