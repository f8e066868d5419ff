"""Runs anywhere (pure). Which GPUs a process may see."""

from collections.abc import Sequence

__all__ = ["as_seen_by_executor", "share", "visible_devices"]


def visible_devices(devices: Sequence[str], detect: bool) -> dict[str, str]:
    """The environment variable that pins a process to its GPUs.

    Args:
        devices: what this process may use, such as `["0", "1"]`.
        detect: where nothing was assigned, leave the process what its host shows.

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
    """Spark's addresses as devices of the host.

    An executor that was started with a `CUDA_VISIBLE_DEVICES` of its own sees these devices only,
    and CUDA numbers them from 0: a number stands for a place in that list, as in
    spark-tensorflow-distributor and TorchDistributor. Anything else, such as a UUID, is a name.

    Args:
        addresses: what Spark assigned to the task.
        own: the executor's `CUDA_VISIBLE_DEVICES`, None where it has none.

    Raises:
        ValueError: Spark assigned a device that this executor may not see.

    Example:
        >>> as_seen_by_executor(["1"], "4,5")
        ['5']
        >>> as_seen_by_executor(["1"], None)
        ['1']
    """
    if own is None:
        return list(addresses)
    visible = [device.strip() for device in own.split(",") if device.strip()]
    found = []
    for address in addresses:
        if address.isdigit() and int(address) < len(visible):
            found.append(visible[int(address)])
        elif address in visible:
            found.append(address)
        else:
            raise ValueError(
                f"Spark assigned GPU {address!r}, but this executor was started with "
                f"CUDA_VISIBLE_DEVICES={own!r}. Let the discovery script of Spark print the "
                "places in that list, from 0, or start the executor without that variable."
            )
    return found


def share(devices: Sequence[str], index: int, count: int) -> list[str]:
    """This one's part of devices that several processes divide among them.

    Every part has the same size, to within one; together they are all of `devices`.

    Example:
        >>> [share(["0", "1", "2", "3", "4"], i, 2) for i in range(2)]
        [['0', '1', '2'], ['3', '4']]
    """
    each, more = divmod(len(devices), count)
    first = index * each + min(index, more)
    return list(devices[first : first + each + (index < more)])
