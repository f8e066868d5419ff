"""Runs anywhere (pure). Select the GPUs that are visible to a process."""

from collections.abc import Sequence

__all__ = ["as_seen_by_executor", "share", "visible_devices"]


def visible_devices(devices: Sequence[str], detect: bool) -> dict[str, str]:
    """Return the environment variable that restricts a process to its GPUs.

    Args:
        devices: the GPUs of the process, such as `["0", "1"]`.
        detect: True to leave all GPUs of the host visible if `devices` is empty.

    Example:
        >>> visible_devices(["2", "3"], detect=False)
        {'CUDA_VISIBLE_DEVICES': '2,3'}
        >>> visible_devices([], detect=False)
        {'CUDA_VISIBLE_DEVICES': ''}
    """
    if not devices and detect:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)}


def as_seen_by_executor(addresses: Sequence[str], own: str | None) -> list[str]:
    """Translate Spark's GPU addresses to devices of the host.

    An executor that was started with `CUDA_VISIBLE_DEVICES` sees only these devices, and CUDA
    numbers them from 0: a number is a position in that list, as in spark-tensorflow-distributor
    and TorchDistributor. Any other address, such as a UUID, is the name of a device.

    Args:
        addresses: the addresses that Spark assigned to the task.
        own: the executor's `CUDA_VISIBLE_DEVICES`; None if it is not set.

    Raises:
        ValueError: if Spark assigned a device that is not visible to this executor.

    Example:
        >>> as_seen_by_executor(["1"], "4,5")
        ['5']
        >>> as_seen_by_executor(["1"], None)
        ['1']
    """
    if own is None:
        return list(addresses)
    visible = [device.strip() for device in own.split(",") if device.strip()]
    devices = []
    for address in addresses:
        if address.isdigit() and int(address) < len(visible):
            devices.append(visible[int(address)])
        elif address in visible:
            devices.append(address)
        else:
            raise ValueError(
                f"Spark assigned GPU {address!r}, but this executor was started with "
                f"CUDA_VISIBLE_DEVICES={own!r}. Make Spark's discovery script print positions in "
                "that list, from 0, or start the executor without that variable."
            )
    return devices


def share(devices: Sequence[str], index: int, count: int) -> list[str]:
    """Return the part of the devices that belongs to one of several processes.

    The sizes of the parts differ by at most one; the parts together are all of `devices`.

    Args:
        devices: the devices to divide.
        index: number of the process, from 0.
        count: number of processes.

    Example:
        >>> [share(["0", "1", "2", "3", "4"], i, 2) for i in range(2)]
        [['0', '1', '2'], ['3', '4']]
    """
    each, more = divmod(len(devices), count)
    first = index * each + min(index, more)
    return list(devices[first : first + each + (index < more)])
