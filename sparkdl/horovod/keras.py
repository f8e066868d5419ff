"""Runs in the training process. The counterpart of `import horovod.keras as hvd`."""

from sparkdl.horovod import *  # noqa: F403
from sparkdl.horovod import __all__ as _names
from sparkdl.horovod import __getattr__ as __getattr__

__all__ = [*_names]
