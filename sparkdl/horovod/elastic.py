"""Runs in the training process.

Horovod's elastic training: a function that begins again from what it kept.

`fit` of a model with a `DistributedOptimizer` needs none of this in a run with `elastic=True`:
there lost ranks are replaced in the middle of it.
"""

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sparkdl import distribute
from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.keras_fit import state as state_of
from sparkdl.distribute.world import ring
from sparkdl.errors import PeerLostError

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]

_CALLBACKS = ("CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback")

HorovodInternalError = PeerLostError


class HostsUpdatedInterrupt(Exception):
    """A rank that was started again waits to take part; `run` lets it in."""


class State:
    """What a training goes on from: attributes, which every rank has alike.

    Args:
        **values: the attributes, such as `epoch=0`. They travel as JSON; Horovod pickled them.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> state = hvd.elastic.State(epoch=0)
        >>> state.commit()
        >>> state.epoch = 5
        >>> state.restore()
        >>> state.epoch
        0
    """

    def __init__(self, **values: Any) -> None:
        self._names, self._reset_callbacks = list(values), list[Callable[[], None]]()
        vars(self).update(values)
        self._kept: tuple[dict[str, Any], list[Any]] = {}, []
        self.save()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Functions to call when the ranks have changed, such as to scale the learning rate."""
        self._reset_callbacks += callbacks

    def on_reset(self) -> None:
        """Call what was registered."""
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keep all as it is now, and let in ranks that wait.

        Raises:
            HostsUpdatedInterrupt: one waits; let it pass, it is for `run`.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Let in ranks that wait; all ranks call it at the same point, see `commit`."""
        world = ring()
        if isinstance(world, ElasticRing) and distribute.allreduce(int(world.is_awaited), "max"):
            raise HostsUpdatedInterrupt("a rank waits to take part")

    def save(self) -> None:
        """Keep all as it is now, in memory."""
        values = {name: getattr(self, name) for name in self._names}
        self._kept = values, [variable.numpy() for variable in self._variables()]

    def restore(self) -> None:
        """Make all as it was kept last."""
        values, arrays = self._kept
        vars(self).update(values)
        for variable, array in zip(self._variables(), arrays, strict=False):
            variable.assign(array)

    def sync(self) -> None:
        """Give all ranks what the first of those has that were there before; keep it."""
        world = ring()
        root = world.root if isinstance(world, ElasticRing) else 0
        values = {name: getattr(self, name) for name in self._names}
        vars(self).update(distribute.broadcast_object(values, root))
        distribute.broadcast_variables(self._variables(), root)
        if isinstance(world, ElasticRing):
            world.has_state = True
        self.save()

    def _variables(self) -> Sequence[Any]:
        return ()


ObjectState = State


class TensorFlowKerasState(State):
    """A Keras model, its optimizer, and attributes.

    Args:
        model: built, and compiled or with `optimizer`.
        optimizer: if it is not the model's.
        backend: has no effect.
        **values: see `State`.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any
    ) -> None:
        self.model, self.optimizer = model, optimizer or model.optimizer
        if not model.built:
            raise ValueError(
                f"{model.name!r} has no weights yet, and cannot be kept. Start it with an Input "
                "layer, or call it on a batch first."
            )
        if hasattr(self.optimizer, "build"):
            self.optimizer.build(model.trainable_variables)
        super().__init__(**values)

    def _variables(self) -> Sequence[Any]:
        return state_of(self.model, self.optimizer)


KerasState = TensorFlowKerasState


class TensorFlowState(State):
    """Variables of TensorFlow, and attributes.

    Args:
        variables: of `tf.Variable`.
        session: None: sessions of `tf.compat.v1` have no elastic state here.
        **values: see `State`.
    """

    def __init__(self, variables: Iterable[Any], session: Any = None, **values: Any) -> None:
        if session is not None:
            raise ValueError(
                f"session is {session!r}; expected None: keep variables of TensorFlow 2."
            )
        self.variables = list(variables)
        super().__init__(**values)

    def _variables(self) -> Sequence[Any]:
        return self.variables


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function outlive the loss of ranks, in a run with `elastic=True`.

    When a rank is lost, each of the others calls the function again from the state it committed
    last, without it. When it was started again and waits, the next `commit` lets it in.

    Args:
        func: its first argument is a `State`. It is called anew each time.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> @hvd.elastic.run
        ... def train(state):
        ...     for state.epoch in range(state.epoch, 3):
        ...         state.commit()
        ...     return state.epoch
        >>> train(hvd.elastic.State(epoch=0))
        2
    """

    @functools.wraps(func)
    def run_elastic(state: State, *args: Any, **kwargs: Any) -> Any:
        world = ring()
        if not isinstance(world, ElasticRing):
            state.sync()
            return func(state, *args, **kwargs)
        world.recovers, changed = False, world.is_late
        try:
            while True:
                try:
                    if changed:
                        world.meet()
                        state.on_reset()
                    state.sync()
                    return func(state, *args, **kwargs)
                except HostsUpdatedInterrupt:
                    pass
                except Exception:
                    if not world.broken:
                        raise
                    state.restore()
                changed = True
        finally:
            world.recovers = True

    return run_elastic


def __getattr__(name: str) -> Any:
    if name in _CALLBACKS:  # They are Keras's, which takes a while to import.
        return getattr(importlib.import_module("sparkdl.horovod.callbacks"), name)
    raise AttributeError(f"module 'sparkdl.horovod.elastic' has no attribute {name!r}")
