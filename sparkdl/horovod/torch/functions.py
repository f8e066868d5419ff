"""Runs in the training process. The counterpart of `horovod.torch.functions`."""

from sparkdl.horovod.torch import *  # noqa: F403
from sparkdl.horovod.torch import __all__ as __all__
from sparkdl.horovod.torch import __getattr__ as __getattr__
