"""Databricks' package `sparkdl.estimators` (runs on the driver)."""
