"""Runs in the training process. The counterpart of `import horovod.keras as hvd`."""

from sparkdl.horovod.tensorflow.keras import *  # noqa: F403
from sparkdl.horovod.tensorflow.keras import __all__ as __all__
from sparkdl.horovod.tensorflow.keras import __getattr__ as __getattr__
