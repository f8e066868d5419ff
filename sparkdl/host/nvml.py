"""Runs anywhere. Ask NVIDIA's management library about GPUs; the only module that calls NVML.

https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
"""

import ctypes
from collections.abc import Sequence


class _Utilization(ctypes.Structure):
    """The type nvmlUtilization_t: percent of the last moment."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """The type nvmlMemory_t, in bytes."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class Nvml:
    """NVIDIA's library, initialized until `close` is called.

    Args:
        library: the loaded library.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @classmethod
    def open(cls) -> "Nvml | None":
        """Load and initialize the library; return None if the host has no NVIDIA driver."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None
        return None if library.nvmlInit_v2() else cls(library)

    def close(self) -> None:
        """Let go of the driver."""
        self._library.nvmlShutdown()

    def count(self) -> int:
        """Return the number of NVIDIA GPUs of this host."""
        count = ctypes.c_uint(0)
        failed = self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return 0 if failed else count.value

    def device(self, gpu: str) -> ctypes.c_void_p:
        """Return the handle of a GPU.

        Args:
            gpu: an index, as numbered by nvidia-smi, or a UUID.

        Raises:
            ValueError: if there is no such GPU.
        """
        device = ctypes.c_void_p()
        if gpu.isdigit():
            failed = self._library.nvmlDeviceGetHandleByIndex_v2(int(gpu), ctypes.byref(device))
        else:
            failed = self._library.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(device))
        if failed:
            raise ValueError(f"there is no GPU {gpu!r} (NVML error {failed}); see gpus().")
        return device

    def num_processes(self, device: ctypes.c_void_p) -> int:
        """Return the number of processes of this host that compute on a GPU."""
        count = ctypes.c_uint(0)
        # Without a buffer for the processes, NVML returns only their number.
        self._library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None)
        return count.value

    def use(self, devices: Sequence[ctypes.c_void_p]) -> tuple[float | None, float | None]:
        """Return how busy GPUs are in percent, on average, and their used memory in MiB together.

        Both are those of all processes on the GPUs, in the last second or less. None stands for
        what the driver does not tell, such as the percentage of a part of a GPU.
        """
        percents, used = [], []
        for device in devices:
            utilization, memory = _Utilization(), _Memory()
            if not self._library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(utilization)):
                percents.append(utilization.gpu)
            if not self._library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
                used.append(memory.used / (1 << 20))
        percent = sum(percents) / len(percents) if percents else None
        return percent, sum(used) if used else None
