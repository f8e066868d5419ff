"""Runs in the training process. The counterpart of `horovod.tensorflow.keras.callbacks`."""

from sparkdl.horovod.tensorflow.callbacks import *  # noqa: F403
from sparkdl.horovod.tensorflow.callbacks import __all__ as __all__
from sparkdl.horovod.tensorflow.callbacks import __getattr__ as __getattr__
