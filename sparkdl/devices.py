"""Runs in the training process, or anywhere.

What accelerators this process sees. The only NVML user.
"""

import ctypes
import os

__all__ = ["get_num_gpus", "gpus", "is_busy"]


def gpus() -> list[str]:
    """The GPUs that this process may use, by index or UUID.

    In a trial these are the ones that Spark assigned to its task.

    Example:
        >>> import os
        >>> os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        >>> gpus()
        ['2', '3']
        >>> del os.environ["CUDA_VISIBLE_DEVICES"]
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(_installed())]
    # CUDA stops at the first entry that names no device, such as -1.
    found: list[str] = []
    for entry in visible.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        found.append(entry.strip())
    return found


def get_num_gpus() -> int:
    """How many GPUs this process may use.

    Example:
        >>> get_num_gpus() == len(gpus())
        True
    """
    return len(gpus())


def is_busy(gpu: str) -> bool:
    """Whether any process of this host computes on a GPU.

    Args:
        gpu: one of `gpus()`, by index (as nvidia-smi counts them) or UUID.

    Raises:
        ValueError: there is no such GPU.

    Example:
        >>> [is_busy(gpu) for gpu in gpus()] # doctest: +SKIP
        [False, True]
    """
    nvml = _nvml()
    if nvml is None:
        raise ValueError(f"there is no GPU {gpu!r}: this host has no NVIDIA driver.")
    device, count = ctypes.c_void_p(), ctypes.c_uint(0)
    try:
        if gpu.isdigit():
            failed = nvml.nvmlDeviceGetHandleByIndex_v2(int(gpu), ctypes.byref(device))
        else:
            failed = nvml.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(device))
        if failed:
            raise ValueError(f"there is no GPU {gpu!r} (NVML answers {failed}); see gpus().")
        # Without room for the processes themselves it tells how many there are.
        nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None)
    finally:
        nvml.nvmlShutdown()
    return count.value > 0


def _nvml() -> ctypes.CDLL | None:
    """NVIDIA's library, ready for questions; None where there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None  # No driver, no GPU.
    return None if nvml.nvmlInit_v2() else nvml


def _installed() -> int:
    """The number of NVIDIA GPUs of this host, from NVML (nvmlDeviceGetCount_v2)."""
    nvml = _nvml()
    if nvml is None:
        return 0
    count = ctypes.c_uint(0)
    failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlShutdown()
    return 0 if failed else count.value
