"""Runs anywhere. Databricks' module `sparkdl.xgboost`: not here."""

from sparkdl.databricks.refusals import what_to_use

raise ImportError(what_to_use("sparkdl.xgboost"))
