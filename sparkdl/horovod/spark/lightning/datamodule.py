"""Runs on the driver. The counterpart of `horovod.spark.lightning.datamodule`."""

from sparkdl.horovod.absent_names import ROWS_BY_SPARK, absent_names

_NAMES = ("NVTabularDataModule", "PetastormDataModule")

__getattr__ = absent_names(__name__, instead=dict.fromkeys(_NAMES, ROWS_BY_SPARK))
