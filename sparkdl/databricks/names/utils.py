"""Runs anywhere. Databricks' module `sparkdl.utils`: not here."""

from sparkdl.databricks.refusals import what_to_use

raise ImportError(what_to_use("sparkdl.utils"))
