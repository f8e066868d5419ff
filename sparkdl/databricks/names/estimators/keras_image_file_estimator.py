"""Runs on the driver. Databricks' module `sparkdl.estimators.keras_image_file_estimator`."""

from sparkdl.databricks.image_estimator import KerasImageFileEstimator

__all__ = ["KerasImageFileEstimator"]
