"""Runs on the driver. The counterpart of `horovod.spark.common.estimator`."""

from sparkdl.horovod.absent_names import absent_names

_NAMES = ("HorovodEstimator", "HorovodModel")
_INSTEAD = (
    "Estimators and models derive from those of Spark ML: write pyspark.ml.Estimator "
    "and pyspark.ml.Model."
)

__getattr__ = absent_names(__name__, instead=dict.fromkeys(_NAMES, _INSTEAD))
