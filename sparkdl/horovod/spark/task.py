"""Runs in the training process. The counterpart of `horovod.spark.task`."""

from sparkdl import devices
from sparkdl.horovod.absent_names import absent_names

__all__ = ["get_available_devices"]


def get_available_devices() -> list[str]:
    """Return the GPUs of this rank, see `sparkdl.devices.gpus`."""
    return devices.gpus()


__getattr__ = absent_names(__name__, __all__)
