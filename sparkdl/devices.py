"""Runs anywhere. List the GPUs that this process may use."""

import os

from sparkdl.host.cuda_visibility import listed_devices
from sparkdl.host.nvml import Nvml

__all__ = ["get_num_gpus", "gpus", "is_busy"]


def gpus() -> list[str]:
    """Return the GPUs that this process may use, by index or UUID.

    In a trial these are the GPUs that Spark assigned to the trial's task.

    Example:
        >>> import os
        >>> os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        >>> gpus()
        ['2', '3']
        >>> del os.environ["CUDA_VISIBLE_DEVICES"]
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(_num_installed())]
    return listed_devices(visible)


def get_num_gpus() -> int:
    """Return the number of GPUs that this process may use.

    Example:
        >>> get_num_gpus() == len(gpus())
        True
    """
    return len(gpus())


def is_busy(gpu: str) -> bool:
    """Return True if any process of this host computes on a GPU.

    Args:
        gpu: one of `gpus()`: an index, as numbered by nvidia-smi, or a UUID.

    Raises:
        ValueError: if there is no such GPU.

    Example:
        >>> [is_busy(gpu) for gpu in gpus()] # doctest: +SKIP
        [False, True]
    """
    nvml = Nvml.open()
    if nvml is None:
        raise ValueError(f"there is no GPU {gpu!r}: this host has no NVIDIA driver.")
    try:
        return nvml.num_processes(nvml.device(gpu)) > 0
    finally:
        nvml.close()


def _num_installed() -> int:
    """Return the number of NVIDIA GPUs of this host."""
    nvml = Nvml.open()
    if nvml is None:
        return 0
    try:
        return nvml.count()
    finally:
        nvml.close()
