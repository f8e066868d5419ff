"""Runs in the training process. The counterpart of `horovod.common.exceptions`."""

from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.elastic import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]

__getattr__ = absent_names(__name__, __all__)
