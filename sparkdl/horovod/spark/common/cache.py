"""Runs on the driver. The counterpart of `horovod.spark.common.cache`."""

from sparkdl.horovod.absent_names import absent_names

_NAMES = ("TrainingDataCache",)
_INSTEAD = "Spark caches the rows: call fit(df.cache())."

__getattr__ = absent_names(__name__, instead=dict.fromkeys(_NAMES, _INSTEAD))
