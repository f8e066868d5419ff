"""Runs in the training process. The counterpart of `horovod.tensorflow.functions`."""

from sparkdl.horovod.tensorflow import *  # noqa: F403
from sparkdl.horovod.tensorflow import __all__ as __all__
from sparkdl.horovod.tensorflow import __getattr__ as __getattr__
