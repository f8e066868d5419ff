"""Databricks' package `sparkdl.image` (runs anywhere)."""
