"""Runs on the driver. Databricks' module `sparkdl.udf.keras_image_model`."""

from sparkdl.databricks.image_function import registerKerasImageUDF

__all__ = ["registerKerasImageUDF"]
