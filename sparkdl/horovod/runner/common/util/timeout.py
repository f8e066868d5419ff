"""Runs on the driver. The counterpart of `horovod.runner.common.util.timeout`."""

from sparkdl.errors import SlotsError
from sparkdl.horovod.absent_names import absent_names

__all__ = ["TimeoutException"]


class TimeoutException(SlotsError):
    """Spark had too few slots for the ranks until `start_timeout`. Nothing was started."""


__getattr__ = absent_names(__name__, __all__)
