"""The counterpart of `horovod.spark` (runs on the driver): functions in ranks, and estimators."""

from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.spark.runner import run, run_elastic

__all__ = ["run", "run_elastic"]

__getattr__ = absent_names(__name__, [*__all__, "common", "keras", "task"])
