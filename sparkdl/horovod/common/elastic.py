"""Runs in the training process. The counterpart of `horovod.common.elastic`."""

from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.elastic import ObjectState, State

__all__ = ["ObjectState", "State"]

__getattr__ = absent_names(
    __name__, __all__, instead={"run_fn": "Decorate the function with hvd.elastic.run."}
)
