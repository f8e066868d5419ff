"""Runs anywhere. Count the GPUs that this process may use."""

from sparkdl.devices import get_num_gpus
from sparkdl.hops.absent_names import absent_names

__all__ = ["get_num_gpus"]

__getattr__ = absent_names(__name__, __all__)
