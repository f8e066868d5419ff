"""Runs anywhere (pure). Select the GPUs that are visible to a process."""

from collections.abc import Sequence


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


def listed_devices(variable: str) -> list[str]:
    """Return the devices that a value of `CUDA_VISIBLE_DEVICES` names.

    CUDA ignores all entries after the first one that is not valid, such as -1.

    Example:
        >>> listed_devices("2, GPU-a,-1,0")
        ['2', 'GPU-a']
    """
    entries = [entry.strip() for entry in variable.split(",")]
    ends = (i for i, entry in enumerate(entries) if not entry or entry.startswith("-"))
    return entries[: next(ends, len(entries))]


def as_seen_by_executor(addresses: Sequence[str], visible_devices: str | None) -> list[str]:
    """Translate Spark's GPU addresses to devices of the host.

    An executor that was started with `CUDA_VISIBLE_DEVICES` sees only these devices, and CUDA
    numbers them from 0: a number is a position in that list, as in spark-tensorflow-distributor
    and TorchDistributor, and never the number of a device of the host. With the list 1,2 it could
    be either, and a task knows only its own addresses: two tasks that read it differently would
    get the same device. Any other address, such as a UUID, is the name of a device.

    Args:
        addresses: the addresses that Spark assigned to the task.
        visible_devices: the executor's `CUDA_VISIBLE_DEVICES`; None if it is not set.

    Raises:
        ValueError: if Spark assigned a device that is not visible to this executor, or if the
            executor's list or the addresses name a device twice.

    Example:
        >>> as_seen_by_executor(["1"], "4,5")
        ['5']
        >>> as_seen_by_executor(["1"], None)
        ['1']
    """
    if visible_devices is None or not addresses:
        return list(addresses)
    visible = listed_devices(visible_devices)
    positions = {str(position): device for position, device in enumerate(visible)}
    names = {device: device for device in visible if not device.isdigit()}
    devices = [{**positions, **names}.get(address) for address in addresses]
    devices_found = [device for device in devices if device is not None]
    if len(set(visible)) < len(visible) or not len(set(devices_found)) == len(devices_found) == len(
        devices
    ):
        raise ValueError(
            f"Spark assigned the GPUs {', '.join(addresses)}, but this executor was started with "
            f"CUDA_VISIBLE_DEVICES={visible_devices!r}. Expected {_valid_addresses(visible)}: a "
            "number is a position in that list, from 0. Change what "
            "spark.executor.resource.gpu.discoveryScript prints (on a standalone cluster "
            "spark.worker.resource.gpu.discoveryScript), or start the executor without that "
            "variable."
        )
    return devices_found


def _valid_addresses(visible: Sequence[str]) -> str:
    """Return the addresses that fit the devices of an executor, in words.

    Example:
        >>> _valid_addresses(["4", "5"]), _valid_addresses(["GPU-a"]), _valid_addresses([])
        ('some of 0, 1', 'some of 0, GPU-a', 'no GPUs')
    """
    if len(set(visible)) < len(visible):
        return "each device once in that variable"
    names = [device for device in visible if not device.isdigit()]
    fitting = [*map(str, range(len(visible))), *names]
    return f"some of {', '.join(fitting)}" if fitting else "no GPUs"


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
