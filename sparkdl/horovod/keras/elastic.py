"""Runs in the training process. The counterpart of `horovod.keras.elastic`."""

from sparkdl.horovod.elastic import *  # noqa: F403
from sparkdl.horovod.elastic import __all__ as __all__
from sparkdl.horovod.elastic import __getattr__ as __getattr__
