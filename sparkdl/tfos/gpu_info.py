"""Runs in a Spark task and in the training process. Find GPUs that no process uses."""

import random
import time

from sparkdl import devices
from sparkdl.tfos.absent_names import absent_names

__all__ = ["AS_LIST", "AS_STRING", "MAX_RETRIES", "get_gpus", "is_gpu_available"]

__getattr__ = absent_names(__name__, __all__)

MAX_RETRIES = 3
AS_STRING = "string"
AS_LIST = "list"

# Seconds before the first retry. The second retry waits twice as long, and so on.
RETRY_S = 30.0


def is_gpu_available() -> bool:
    """Return True if this process may use a GPU.

    Example:
        >>> is_gpu_available() == (devices.get_num_gpus() > 0)
        True
    """
    return devices.get_num_gpus() > 0


def get_gpus(
    num_gpu: int = 1,
    worker_index: int = -1,
    format: str = AS_STRING,  # noqa: A002
) -> str | list[str]:
    """Return free GPUs: GPUs that this process may use and no process computes on.

    If too few GPUs are free, the function retries after 30, 60 and 90 seconds.

    Args:
        num_gpu: number of GPUs.
        worker_index: number of the node on its host. Nodes with the numbers 0, 1, 2 ... get
            different GPUs if there are enough, and share GPUs otherwise. -1 chooses at random.
        format: `"string"` for `"0,1"`, `"list"` for `["0", "1"]`.

    Raises:
        RuntimeError: if too few GPUs are free.
        ValueError: if `format` is unknown.

    Example:
        >>> get_gpus(0), get_gpus(0, format=AS_LIST)
        ('', [])
    """
    if format not in (AS_STRING, AS_LIST):
        raise ValueError(f"format is {format!r}; expected {AS_STRING!r} or {AS_LIST!r}.")
    free = _free()
    for attempt in range(1, MAX_RETRIES + 1):
        if len(free) >= num_gpu:
            break
        time.sleep(RETRY_S * attempt)
        free = _free()
    if len(free) < num_gpu:
        raise RuntimeError(
            f"Unable to find {num_gpu} free GPU(s): this process may use {devices.gpus()}, and "
            f"{free} of these are free. Request fewer GPUs, or end the processes that use them."
        )
    if worker_index == -1:
        random.shuffle(free)
        gpus = free[:num_gpu]
    else:
        first = worker_index * num_gpu
        gpus = [free[(first + i) % len(free)] for i in range(num_gpu)]
    return ",".join(gpus) if format == AS_STRING else gpus


def _free() -> list[str]:
    return [gpu for gpu in devices.gpus() if not devices.is_busy(gpu)]
