"""Runs on the driver. The counterpart of `horovod.spark.lightning`."""

from sparkdl.horovod.absent_names import LIGHTNING_TRAINER, absent_names

_NAMES = ("LightningEstimator", "TorchEstimator", "TorchModel")

__getattr__ = absent_names(__name__, instead=dict.fromkeys(_NAMES, LIGHTNING_TRAINER))
