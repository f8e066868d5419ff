"""Databricks' package `sparkdl.udf` (runs on the driver)."""
