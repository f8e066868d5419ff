"""Runs on the driver. Databricks' module `sparkdl.transformers.named_image`."""

from sparkdl.databricks.named_models import DeepImageFeaturizer, DeepImagePredictor

__all__ = ["DeepImageFeaturizer", "DeepImagePredictor"]
