"""Runs anywhere. Count the GPUs that this process may use."""

from sparkdl.devices import get_num_gpus

__all__ = ["get_num_gpus"]
