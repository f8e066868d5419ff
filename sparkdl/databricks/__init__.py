"""Databricks' package `sparkdl`: HorovodRunner and Deep Learning Pipelines (runs anywhere).

Their programs import `sparkdl` itself, which finds the classes here. `names/` has the modules that
they import by paths such as `sparkdl.image.imageIO`.
"""

from typing import TYPE_CHECKING

from sparkdl.host.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparkdl.databricks.horovod_runner import HorovodRunner
    from sparkdl.databricks.image_estimator import KerasImageFileEstimator
    from sparkdl.databricks.keras_stages import KerasImageFileTransformer, KerasTransformer
    from sparkdl.databricks.named_models import DeepImageFeaturizer, DeepImagePredictor

__all__ = [
    "DeepImageFeaturizer",
    "DeepImagePredictor",
    "HorovodRunner",
    "KerasImageFileEstimator",
    "KerasImageFileTransformer",
    "KerasTransformer",
]

__getattr__ = lazy_names(
    "sparkdl",
    {
        "sparkdl.databricks.horovod_runner": "HorovodRunner",
        "sparkdl.databricks.image_estimator": "KerasImageFileEstimator",
        "sparkdl.databricks.keras_stages": "KerasImageFileTransformer KerasTransformer",
        "sparkdl.databricks.named_models": "DeepImageFeaturizer DeepImagePredictor",
    },
    __all__,
)
