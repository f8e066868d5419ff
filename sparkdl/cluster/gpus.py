"""Where it runs: anywhere (pure). Which GPUs a training process may see."""

from collections.abc import Sequence

__all__ = ["visible_devices"]


def visible_devices(addresses: Sequence[str], detect: bool) -> dict[str, str]:
    """The environment variable that pins a process to its GPUs.

    Args:
        addresses: what Spark assigned to the task, such as `["0", "1"]`.
        detect: where Spark assigned nothing, leave the process what its host shows.

    Example:
        >>> visible_devices(["2", "3"], detect=False)
        {'CUDA_VISIBLE_DEVICES': '2,3'}
        >>> visible_devices([], detect=False)
        {'CUDA_VISIBLE_DEVICES': ''}
    """
    if not addresses and detect:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(addresses)}
