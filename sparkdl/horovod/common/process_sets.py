"""Runs in the training process. The counterpart of `horovod.common.process_sets`."""

from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]

__getattr__ = absent_names(__name__, __all__)
