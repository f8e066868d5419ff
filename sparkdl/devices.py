"""Runs anywhere. List the GPUs that this process may use; the only module that calls NVML."""

import ctypes
import os

from sparkdl.host.cuda_visibility import listed_devices

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
    nvml = _nvml()
    if nvml is None:
        raise ValueError(f"there is no GPU {gpu!r}: this host has no NVIDIA driver.")
    device = ctypes.c_void_p()
    count = ctypes.c_uint(0)
    try:
        if gpu.isdigit():
            failed = nvml.nvmlDeviceGetHandleByIndex_v2(int(gpu), ctypes.byref(device))
        else:
            failed = nvml.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(device))
        if failed:
            raise ValueError(f"there is no GPU {gpu!r} (NVML error {failed}); see gpus().")
        # Without a buffer for the processes, NVML returns only their number.
        nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None)
    finally:
        nvml.nvmlShutdown()
    return count.value > 0


def _nvml() -> ctypes.CDLL | None:
    """Load and initialize NVIDIA's library; return None if the host has no NVIDIA driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if nvml.nvmlInit_v2() else nvml


def _num_installed() -> int:
    """Return the number of NVIDIA GPUs of this host, from NVML (nvmlDeviceGetCount_v2)."""
    nvml = _nvml()
    if nvml is None:
        return 0
    count = ctypes.c_uint(0)
    failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlShutdown()
    return 0 if failed else count.value
