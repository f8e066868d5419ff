"""The counterpart of `horovod.spark.keras` (runs on the driver): Keras models in Spark ML."""

from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.spark.keras.estimator import KerasEstimator
from sparkdl.horovod.spark.keras.model import KerasModel

__all__ = ["KerasEstimator", "KerasModel"]

__getattr__ = absent_names(__name__, __all__)
