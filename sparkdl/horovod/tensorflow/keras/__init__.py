"""Runs in the training process. The counterpart of `import horovod.tensorflow.keras as hvd`."""

from sparkdl.databricks.log_callback import LogCallback as LogCallback
from sparkdl.horovod.tensorflow import *  # noqa: F403
from sparkdl.horovod.tensorflow import __all__ as _of_tensorflow
from sparkdl.horovod.tensorflow import __getattr__ as __getattr__
from sparkdl.horovod.tensorflow.keras_functions import *  # type: ignore[assignment]  # noqa: F403
from sparkdl.horovod.tensorflow.keras_functions import __all__ as _of_keras
from sparkdl.horovod.tensorflow.load_model import load_model

__all__ = [*(name for name in _of_tensorflow if name not in _of_keras), *_of_keras, "load_model"]
