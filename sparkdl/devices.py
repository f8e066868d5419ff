"""Where it runs: P, or anywhere. What accelerators this process sees. The only NVML user."""

import ctypes
import os

__all__ = ["get_num_gpus", "gpus"]


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


def _installed() -> int:
    """The number of NVIDIA GPUs of this host, from NVML (nvmlDeviceGetCount_v2)."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0  # No driver, no GPU.
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return 0
    nvml.nvmlShutdown()
    return count.value
