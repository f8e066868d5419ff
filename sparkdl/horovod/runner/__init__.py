"""The counterpart of `horovod.runner` (runs on the driver)."""

from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.launch import run

__all__ = ["run"]

__getattr__ = absent_names(__name__, __all__)
