"""Databricks' package `sparkdl.transformers` (runs on the driver)."""
