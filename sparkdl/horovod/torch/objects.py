"""Runs in the training process. Horovod's collectives of Python objects that may hold tensors.

Objects travel as JSON, see `horovod.objects`, and the tensors of a broadcast as arrays beside it.
"""

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import torch

from sparkdl.distribute.ring import Ring
from sparkdl.errors import named_type
from sparkdl.files.typed_json import dtype_named, encoded
from sparkdl.horovod import objects
from sparkdl.horovod.agreement import agree
from sparkdl.horovod.process_sets import ProcessSet, global_process_set, root_in
from sparkdl.horovod.torch.async_collectives import broadcast_async_
from sparkdl.horovod.torch.handles import call, synchronize
from sparkdl.horovod.torch.tensors import as_array, as_tensor

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]

# Mark the places of a tensor, and of an option of an optimizer that JSON cannot hold.
_TENSOR = "torch.Tensor"
_PICKLED = "pickled"


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of rank `root_rank`. It travels as JSON; Horovod pickles it.

    Args:
        obj: numbers, text, bytes, arrays, tensors, lists, tuples, sets and dicts.
        root_rank: the rank whose object is returned.
        name: name by which the ranks find each other, see `allreduce`.
        process_set: the ranks that take part.

    Returns:
        The object; tensors are on the CPU.

    Raises:
        ValueError: on all ranks, if the object has other parts.
        HorovodInternalError: on all ranks, if they disagree about the root.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> hvd.broadcast_object({"best": torch.tensor(0.5), 0: (1, 2)})
        {'best': tensor(0.5000), 0: (1, 2)}
    """
    root = root_in(process_set, root_rank)

    def broadcast(ring: Ring) -> Any:
        arrays: list[Any] = []
        kinds: list[Any] = []

        def take(tensor: Any) -> Any:
            arrays.append(as_array(tensor))
            kinds.append([arrays[-1].dtype.name, list(tensor.shape)])
            return len(arrays) - 1

        sent = [_pack_if_possible(ring, obj, take), kinds] if ring.rank == root else None
        structure, kinds = objects.broadcast_over(ring, sent, root)
        if ring.rank != root:
            arrays = [np.empty(shape, dtype_named(dtype)) for dtype, shape in kinds]
        tensors = [as_tensor(ring.broadcast(array, root)) for array in arrays]
        return _unpacked(structure, lambda number: tensors[number])

    return call(broadcast, process_set, name and f"broadcast_object.{name}")


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, by rank, see `broadcast_object`.

    Args:
        obj, name, process_set: see `broadcast_object`.

    Example:
        >>> import sparkdl.horovod.torch as hvd
        >>> hvd.allgather_object({"loss": 0.5})
        [{'loss': 0.5}]
    """

    def gather(ring: Ring) -> list[Any]:
        gathered = objects.allgather_over(ring, _pack_if_possible(ring, obj, as_array))
        return [_unpacked(each, as_tensor) for each in gathered]

    return list(call(gather, process_set, name and f"allgather_object.{name}"))


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Assign the tensors of rank `root_rank` to those of all ranks.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`.
        root_rank: the rank whose tensors are assigned.

    Raises:
        ValueError: if `params` is something else.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> hvd.broadcast_parameters(torch.nn.Linear(2, 1).state_dict(), root_rank=0)
    """
    pairs = sorted(params.items()) if isinstance(params, dict) else list(params)
    tensors = [each[1] if isinstance(each, tuple) else each for each in pairs]
    if other := [each for each in tensors if not isinstance(each, torch.Tensor)]:
        raise ValueError(
            f"broadcast_parameters got {named_type(other[0])}; expected the tensors of "
            "model.state_dict(), named_parameters() or parameters(). hvd.broadcast_object "
            "broadcasts other values."
        )
    for handle in [broadcast_async_(tensor, root_rank) for tensor in tensors]:
        synchronize(handle)


def broadcast_optimizer_state(optimizer: Any, root_rank: int, model: Any = None) -> None:
    """Assign the state and the options of the optimizer of rank `root_rank`, on all ranks.

    Values that JSON cannot hold, such as dtypes and functions, are pickled, as in Horovod. The
    groups of parameters stay the same objects, which a scheduler may have.

    Args:
        optimizer: an optimizer of the same parameters on all ranks, also a `DistributedOptimizer`.
        root_rank: the rank whose state is assigned.
        model: has no effect.

    Raises:
        ValueError: on all ranks, if a value cannot be pickled; if a rank has other parameters.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> optimizer = torch.optim.Adam(torch.nn.Linear(2, 1).parameters())
        >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    is_root = root_in(global_process_set, root_rank) == global_process_set.rank()
    state_parts: Any = None
    if is_root:
        state = optimizer.state_dict()
        entries = {key: _portable(entry) for key, entry in state["state"].items()}
        state_parts = entries, [_portable(group) for group in state["param_groups"]]
    entries, groups = broadcast_object(state_parts, root_rank)
    if is_root:
        return
    lengths = [len(group["params"]) for group in groups]
    own_lengths = [len(group["params"]) for group in optimizer.param_groups]
    if lengths != own_lengths:
        raise ValueError(
            f"the optimizer has groups of {own_lengths} parameters, and that of rank {root_rank} "
            f"of {lengths}; expected the same parameters on all ranks."
        )
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        for name, value in values.items():
            if name != "params":
                group[name] = _restored(value, getattr(group.get(name), "device", None))
    _assign_state(optimizer, entries)


def _assign_state(optimizer: Any, entries: dict[Any, Any]) -> None:
    """Assign the state of an optimizer, by the number of the parameter."""
    numbered = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    optimizer.state.clear()
    for key, entry in entries.items():
        if not isinstance(key, int) or not isinstance(entry, dict):
            optimizer.state[key] = _restored(entry)
            continue
        parameter, group = numbered[key]
        on_device = group.get("capturable") or group.get("fused")
        optimizer.state[parameter] = {
            # PyTorch keeps the number of steps on the host, if nothing else is said.
            name: _restored(value, None if name == "step" and not on_device else parameter.device)
            for name, value in entry.items()
        }


def _portable(entry: Any) -> Any:
    """Return values that travel in place of the values of a dict, or of one value."""
    if isinstance(entry, dict):
        return {key: _portable(value) for key, value in entry.items()}
    try:
        encoded(_pack(entry, lambda tensor: 0))
    except TypeError:
        try:
            return _PICKLED, cloudpickle.dumps(entry)
        except Exception:  # noqa: BLE001 It may be of any kind; all ranks get the error of JSON.
            return entry
    return entry


def _restored(value: Any, device: Any = None) -> Any:
    """Return the value that `_portable` got, with its tensors on a device."""
    if isinstance(value, torch.Tensor):
        return value if device is None else value.to(device)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        # The other ranks know the secret of the gang, see `handshake`.
        return pickle.loads(value[1]) if value[0] == _PICKLED else value
    return _with_items(value, lambda item: _restored(item, device))


def _pack_if_possible(ring: Ring, obj: Any, take: Callable[[Any], Any]) -> Any:
    """Return the object without its tensors; let all ranks fail if it has one without an array."""
    try:
        return _pack(obj, take)
    except ValueError as exc:
        agree(ring, {"error": str(exc)})
        raise


def _pack(obj: Any, take: Callable[[Any], Any]) -> Any:
    """Return an object with what `take` returns in place of its tensors."""
    if isinstance(obj, torch.Tensor):
        return _TENSOR, take(obj)
    return _with_items(obj, lambda item: _pack(item, take))


def _unpacked(obj: Any, give: Callable[[Any], Any]) -> Any:
    """Return the object that `_pack` got, with tensors that `give` returns."""
    if isinstance(obj, tuple) and len(obj) == 2 and isinstance(obj[0], str) and obj[0] == _TENSOR:
        return give(obj[1])
    return _with_items(obj, lambda item: _unpacked(item, give))


def _with_items(obj: Any, change: Callable[[Any], Any]) -> Any:
    """Return a dict, list or tuple with what `change` returns in place of its items."""
    if isinstance(obj, dict):
        return {key: change(value) for key, value in obj.items()}
    for kind in (list, tuple):
        if isinstance(obj, kind):
            return kind(map(change, obj))
    return obj
