"""Runs in the training process. The counterpart of `horovod.torch.elastic`."""

import copy
from collections.abc import Callable
from typing import Any

import torch

from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.world import ring
from sparkdl.horovod import elastic
from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.elastic import HostsUpdatedInterrupt, ObjectState, State
from sparkdl.horovod.name_order import order_of
from sparkdl.horovod.process_sets import global_process_set
from sparkdl.horovod.torch.elastic.sampler import ElasticSampler
from sparkdl.horovod.torch.handles import HorovodInternalError
from sparkdl.horovod.torch.objects import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]

__getattr__ = absent_names(__name__, __all__)


class TorchState(State):
    """Models, optimizers and samplers of PyTorch, and attributes.

    Args:
        model: a `torch.nn.Module`.
        optimizer: an optimizer of `torch.optim`, also a `DistributedOptimizer`.
        **values: further models, optimizers and `ElasticSampler`s; and attributes, of the kinds
            that `hvd.broadcast_object` takes.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> model = torch.nn.Linear(1, 1)
        >>> state = hvd.elastic.TorchState(model, epoch=0)
        >>> before = model.bias.item()
        >>> torch.nn.init.constant_(model.bias, 5.0)
        Parameter containing:
        tensor([5.], requires_grad=True)
        >>> state.restore()
        >>> model.bias.item() == before
        True
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        all_values = {"model": model, "optimizer": optimizer, **values}
        parts = {name: value for name, value in all_values.items() if _has_state(value)}
        self._part_names = list(parts)
        self._saved_parts: dict[str, Any] = {}
        vars(self).update(parts)
        super().__init__(**{name: all_values[name] for name in all_values if name not in parts})

    def check_host_updates(self) -> None:
        """Admit ranks that wait; all ranks call it at the same point.

        Raises:
            HostsUpdatedInterrupt: see `commit`.
        """
        if isinstance(ring(), ElasticRing):
            order_of(global_process_set).wait_until_idle()
        super().check_host_updates()

    def save(self) -> None:
        """Save the current state in memory."""
        super().save()
        states = {name: getattr(self, name).state_dict() for name in self._part_names}
        self._saved_parts = copy.deepcopy(states)

    def restore(self) -> None:
        """Restore the state that was saved last."""
        super().restore()
        # An optimizer takes the tensors themselves, and changes them with the next step.
        for name, state in copy.deepcopy(self._saved_parts).items():
            getattr(self, name).load_state_dict(state)

    def sync(self) -> None:
        """Broadcast the state of the first rank that has it to all ranks, and save it."""
        world = ring()
        root = world.root if isinstance(world, ElasticRing) else 0
        for part in (getattr(self, name) for name in self._part_names):
            if isinstance(part, torch.nn.Module):
                broadcast_parameters(part.state_dict(), root)
            elif isinstance(part, torch.optim.Optimizer):
                broadcast_optimizer_state(part, root)
            else:
                part.load_state_dict(broadcast_object(part.state_dict(), root))
        super().sync()

    def _broadcast(self, values: dict[str, Any], root: int) -> dict[str, Any]:
        return dict(broadcast_object(values, root))


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function survive the loss of ranks, in a run with `elastic=True`.

    When a rank is lost, the other ranks call the function again, from the state that was committed
    last. When the lost rank has restarted and waits, the next `commit` admits it.

    Args:
        func: a function whose first argument is a `TorchState`. It may be called several times.

    Example:
        >>> import sparkdl.horovod.torch as hvd
        >>> @hvd.elastic.run
        ... def train(state):
        ...     for state.epoch in range(state.epoch, 3):
        ...         state.commit()
        ...     return state.epoch
        >>> train(hvd.elastic.TorchState(epoch=0))
        2
    """
    return elastic.run_between(func, _restart_order)


def _restart_order() -> None:
    """Number the collectives from the beginning, as ranks do that have restarted."""
    order_of(global_process_set).restart()


def _has_state(value: Any) -> bool:
    return isinstance(value, torch.nn.Module | torch.optim.Optimizer | ElasticSampler)
