"""Runs in the training process. Give all ranks the variables of one rank, eagerly or in a graph."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from sparkdl.distribute.ring import Ring
from sparkdl.horovod import arrays
from sparkdl.horovod.process_sets import ProcessSet, global_process_set, root_in
from sparkdl.horovod.tensorflow.session_order import collective_scope
from sparkdl.horovod.tensorflow.tensors import call_on_arrays

__all__ = [
    "BroadcastGlobalVariablesHook",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_variables",
]


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assign the values of rank `root_rank` to the variables of all ranks.

    Args:
        variables: TensorFlow or Keras variables, the same in the same order on all ranks.
        root_rank: the rank whose values are assigned.
        process_set: the ranks that take part.
        inplace: has no effect.

    Returns:
        In a graph of `tf.compat.v1`, the operation that assigns them; otherwise None.

    Example:
        >>> import tensorflow as tf, sparkdl.horovod as hvd
        >>> hvd.broadcast_variables([tf.Variable(3.0)], root_rank=0)
    """
    variables = list(variables)
    if not variables:
        return None
    tensors = [tf.convert_to_tensor(variable) for variable in variables]

    def exchange(ring: Ring, *values: Any) -> list[Any]:
        return arrays.broadcast(ring, values, root_in(process_set, root_rank))

    dtypes, shapes = [tensor.dtype for tensor in tensors], [tensor.shape for tensor in tensors]
    with collective_scope(exchange, tensors):
        received = call_on_arrays(exchange, process_set, tensors, dtypes, shapes)
    pairs = zip(variables, received, strict=True)
    assigned = [variable.assign(value) for variable, value in pairs]
    if tf.executing_eagerly() or tf.inside_function():
        return None
    return tf.group(*assigned)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assign the values of rank `root_rank` to the variables of all ranks, and return the values.

    Args:
        variables, root_rank, process_set: see `broadcast_variables`.
        name: has no effect.

    Example:
        >>> import tensorflow as tf, sparkdl.horovod as hvd
        >>> [float(value) for value in hvd.broadcast_([tf.Variable(3.0)], root_rank=0)]
        [3.0]
    """
    assigned = broadcast_variables(variables, root_rank, process_set)
    with tf.control_dependencies([] if assigned is None else [assigned]):
        return [tf.identity(variable) for variable in variables]


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an operation that broadcasts all global variables of a `tf.compat.v1` graph.

    Args:
        root_rank: the rank whose values all ranks receive.

    Raises:
        RuntimeError: in eager mode, which has no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables was called eagerly, where TensorFlow keeps no list of "
            "variables. Use hvd.broadcast_variables(model.variables, root_rank=0)."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def BroadcastGlobalVariablesHook(root_rank: int, device: str = "") -> Any:
    """Return a hook by which the ranks of a `MonitoredTrainingSession` start with equal variables.

    Args:
        root_rank: the rank whose values all ranks receive, also those restored from a checkpoint.
        device: has no effect.
    """

    class Hook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.broadcast = broadcast_global_variables(root_rank)

        def after_create_session(self, session: Any, coord: Any) -> None:
            session.run(self.broadcast)

    return Hook()
