"""Runs on the driver. Databricks' module `sparkdl.transformers.keras_tensor`."""

from sparkdl.databricks.keras_stages import KerasTransformer

__all__ = ["KerasTransformer"]
