"""Runs anywhere. Databricks' module `sparkdl.image.imageIO`."""

from sparkdl.databricks.image_io import *  # noqa: F403
from sparkdl.databricks.image_io import __all__ as __all__
