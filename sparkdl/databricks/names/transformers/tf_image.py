"""Runs anywhere. Databricks' module `sparkdl.transformers.tf_image`: not here."""

from sparkdl.databricks.refusals import what_to_use

raise ImportError(what_to_use("sparkdl.transformers.tf_image"))
