"""Runs on the driver. Databricks' module `sparkdl.transformers.keras_image`."""

from sparkdl.databricks.keras_stages import KerasImageFileTransformer

__all__ = ["KerasImageFileTransformer"]
