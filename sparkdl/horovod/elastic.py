"""Runs in the training process. Horovod's elastic training: restart a function from its last state.

`fit` of a model with a `DistributedOptimizer` does not need this module: in a run with
`elastic=True`, lost ranks are replaced while `fit` is running.
"""

import copy
import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sparkdl import distribute
from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.equal_variables import shared_variables
from sparkdl.distribute.world import ring
from sparkdl.errors import CollectiveError
from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.objects import broadcast_object

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

HorovodInternalError = CollectiveError


class HostsUpdatedInterrupt(Exception):
    """Raised when a restarted rank waits to take part; `run` admits it."""


class State:
    """The state from which a training continues: attributes with the same values on all ranks.

    Args:
        bcast_object, get_rank: have no effect.
        **values: the attributes, such as `epoch=0`, of the kinds that `hvd.broadcast_object` takes.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> state = hvd.elastic.State(epoch=0)
        >>> state.commit()
        >>> state.epoch = 5
        >>> state.restore()
        >>> state.epoch
        0
    """

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **values: Any) -> None:
        self._names = list(values)
        self._reset_callbacks: list[Callable[[], None]] = []
        self._saved_values: dict[str, Any] = {}
        self._saved_arrays: list[Any] = []
        vars(self).update(values)
        self.save()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Register functions to call when the ranks change, for example to scale a learning rate.

        Args:
            callbacks: functions without arguments.
        """
        self._reset_callbacks += callbacks

    def on_reset(self) -> None:
        """Call the registered functions."""
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the current state, and admit ranks that wait.

        Raises:
            HostsUpdatedInterrupt: if a rank waits. Do not catch it: `run` handles it.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Admit ranks that wait; all ranks call it at the same point.

        Raises:
            HostsUpdatedInterrupt: see `commit`.
        """
        world = ring()
        if isinstance(world, ElasticRing) and distribute.allreduce(int(world.is_awaited), "max"):
            raise HostsUpdatedInterrupt("a rank waits to take part")

    def save(self) -> None:
        """Save the current state in memory."""
        # A copy, because the program may change lists and arrays in place.
        self._saved_values = copy.deepcopy({name: getattr(self, name) for name in self._names})
        self._saved_arrays = self._arrays()

    def restore(self) -> None:
        """Restore the state that was saved last."""
        vars(self).update(copy.deepcopy(self._saved_values))
        self._assign(self._saved_arrays)

    def sync(self) -> None:
        """Broadcast the state of the first rank that has it to all ranks, and save it."""
        world = ring()
        root = world.root if isinstance(world, ElasticRing) else 0
        values = {name: getattr(self, name) for name in self._names}
        vars(self).update(self._broadcast(values, root))
        self._assign([world.broadcast(array, root) for array in self._arrays()])
        if isinstance(world, ElasticRing):
            world.has_state = True
        self.save()

    def _broadcast(self, values: dict[str, Any], root: int) -> dict[str, Any]:
        return dict(broadcast_object(values, root))

    def _variables(self) -> Sequence[Any]:
        return ()

    def _arrays(self) -> list[Any]:
        return [variable.numpy() for variable in self._variables()]

    def _assign(self, arrays: Sequence[Any]) -> None:
        for variable, array in zip(self._variables(), arrays, strict=False):
            variable.assign(array)


ObjectState = State


class TensorFlowKerasState(State):
    """A Keras model, its optimizer, and attributes.

    Args:
        model: a built model, compiled unless `optimizer` is given.
        optimizer: by default the optimizer of the model.
        backend: has no effect.
        **values: see `State`.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any
    ) -> None:
        self.model = model
        self.optimizer = optimizer or model.optimizer
        if not model.built:
            raise ValueError(
                f"{model.name!r} has no weights yet, and its state cannot be saved. Start it with "
                "an Input layer, or call it on a batch first."
            )
        if hasattr(self.optimizer, "build"):
            self.optimizer.build(model.trainable_variables)
        super().__init__(**values)

    def _variables(self) -> Sequence[Any]:
        return shared_variables(self.model, self.optimizer)


KerasState = TensorFlowKerasState


class TensorFlowState(State):
    """TensorFlow variables, and attributes.

    Args:
        variables: `tf.Variable`s; by default all of the graph.
        session: the session of `tf.compat.v1` that holds them; by default the current one, if
            eager execution is off.
        **values: see `State`.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> import tensorflow as tf
        >>> weights = tf.Variable([1.0])
        >>> state = hvd.elastic.TensorFlowState([weights], step=0)
        >>> _ = weights.assign([5.0])
        >>> state.restore()
        >>> weights.numpy().tolist()
        [1.0]
    """

    def __init__(
        self, variables: Iterable[Any] | None = None, session: Any = None, **values: Any
    ) -> None:
        v1 = importlib.import_module("tensorflow").compat.v1
        self.variables = list(v1.global_variables() if variables is None else variables)
        self.session = session or (None if v1.executing_eagerly() else v1.get_default_session())
        super().__init__(**values)

    def _variables(self) -> Sequence[Any]:
        return self.variables

    def _arrays(self) -> list[Any]:
        return list(self.session.run(self.variables)) if self.session else super()._arrays()

    def _assign(self, arrays: Sequence[Any]) -> None:
        if self.session is None:
            return super()._assign(arrays)
        for variable, array in zip(self.variables, arrays, strict=True):
            variable.load(array, self.session)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function survive the loss of ranks, in a run with `elastic=True`.

    When a rank is lost, the other ranks call the function again, from the state that was committed
    last. When the lost rank has restarted and waits, the next `commit` admits it.

    Args:
        func: a function whose first argument is a `State`. It may be called several times.

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
    return run_between(func, lambda: None)


def run_between(func: Callable[..., Any], prepare: Callable[[], None]) -> Callable[..., Any]:
    """Make a function survive the loss of ranks, see `run`.

    Args:
        func: see `run`.
        prepare: called before the ranks meet again.
    """

    @functools.wraps(func)
    def run_elastic(state: State, *args: Any, **kwargs: Any) -> Any:
        world = ring()
        if not isinstance(world, ElasticRing):
            state.sync()
            return func(state, *args, **kwargs)
        world.recovers = False
        have_ranks_changed = world.is_late
        try:
            while True:
                try:
                    if have_ranks_changed:
                        prepare()
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
                have_ranks_changed = True
        finally:
            world.recovers = True

    return run_elastic


# Imported on first use, because they import Keras, which is slow.
_LATE = dict.fromkeys(_CALLBACKS, "sparkdl.horovod.tensorflow.callbacks")

__getattr__ = absent_names(__name__, [*__all__, *_CALLBACKS], late=_LATE)
