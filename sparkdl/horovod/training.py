"""Runs in the training process. Horovod's optimizer, gradient tape and session hook."""

import functools
from collections.abc import Sequence
from typing import Any

from sparkdl.distribute.gradient_reducer import Reducer
from sparkdl.distribute.optimizers import resolve_optimizer, with_reducer, with_reducer_on_tape
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.world import ring
from sparkdl.horovod.join_operation import announced_allreduce
from sparkdl.horovod.operations import (
    Average,
    Compression,
    Sum,
    check_process_set,
    operation,
)

__all__ = [
    "BroadcastGlobalVariablesHook",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "broadcast_global_variables",
]


class _Reducer(Reducer):
    """Reduces gradients together with ranks that have called `join`.

    Args:
        world, op, wire_dtype: see `Reducer`.
        sparse_as_dense: convert `tf.IndexedSlices` to tensors first.
        factor: factor applied to the results.
    """

    def __init__(
        self,
        world: Ring,
        op: str,
        wire_dtype: str | None,
        sparse_as_dense: bool,
        factor: float = 1.0,
    ) -> None:
        super().__init__(world, op, wire_dtype)
        self._sparse_as_dense = sparse_as_dense
        self._factor = factor

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        if self._sparse_as_dense:
            gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        reduced = list(gradients) if self.ring.is_alone else super().__call__(gradients)
        if self._factor == 1.0:
            return reduced
        return [None if g is None else tf.math.scalar_mul(self._factor, g) for g in reduced]

    def _reduce(self, flat: Any) -> Any:
        out = self._pool.take(flat.size, flat.dtype)
        return announced_allreduce(self.ring, flat, self._op, out)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer average its gradients over all ranks, see `distribute.optimizer`.

    Args:
        optimizer: an optimizer of Keras 3, tf_keras or `tf.compat.v1.train`. It is modified and
            returned.
        compression: an attribute of `Compression`.
        sparse_as_dense: convert `tf.IndexedSlices` to tensors.
        backward_passes_per_step: number of batches whose gradients make up one update; for Keras 3.
        op: `Average` or `Sum`.
        average_aggregated_gradients: use the mean of these batches' gradients, not their sum.
        name, use_locking, device_dense, device_sparse, gradient_predivide_factor, num_groups,
            groups, scale_local_gradients: have no effect.
        process_set: must be None, see `operations.check_process_set`.

    Raises:
        ValueError: if an argument is invalid or not supported.

    Example:
        >>> import keras, sparkdl.horovod as hvd
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5 * hvd.size()))
        >>> float(optimizer.learning_rate)
        0.5
    """
    import tensorflow as tf

    check_process_set(process_set)
    if operation(op) not in (Average, Sum):
        raise ValueError(f"op is {op!r}; expected hvd.Average or hvd.Sum for gradients.")
    num_passes = backward_passes_per_step
    # Keras takes the mean of the batches' gradients.
    factor = 1.0 if average_aggregated_gradients else float(num_passes)
    reducer = _Reducer(ring(), op, compression, sparse_as_dense, factor)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if num_passes > 1:
            raise ValueError(
                f"backward_passes_per_step is {num_passes}; expected 1 for an optimizer of "
                "tf.compat.v1. Add up the gradients of several batches in the program instead."
            )
        return _with_reducer_v1(optimizer, reducer)
    optimizer, package = resolve_optimizer(optimizer)
    if num_passes > 1:
        if package.__name__ != "keras":
            raise ValueError(f"backward_passes_per_step is {num_passes}; expected 1 for tf_keras.")
        optimizer.gradient_accumulation_steps = num_passes
    if ring().is_alone and num_passes == 1:
        return optimizer
    return with_reducer(optimizer, package, reducer)


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Make a `tf.GradientTape` return gradients that are averaged over all ranks.

    Args:
        gradtape: a tape, before or after its `with` block. It is modified and returned.
        compression, sparse_as_dense, op, process_set: see `DistributedOptimizer`.
        device_dense, device_sparse, gradient_predivide_factor, num_groups, groups,
            scale_local_gradients: have no effect.

    Example:
        >>> import tensorflow as tf, sparkdl.horovod as hvd
        >>> x = tf.Variable(3.0)
        >>> with tf.GradientTape() as tape:
        ...     y = x * x
        >>> float(hvd.DistributedGradientTape(tape).gradient(y, x))
        6.0
    """
    check_process_set(process_set)
    reducer = _Reducer(ring(), operation(op), compression, sparse_as_dense)
    return with_reducer_on_tape(gradtape, reducer)


def broadcast_global_variables(root_rank: int) -> Any:
    """Add an operation to the `tf.compat.v1` graph that broadcasts all global variables.

    Args:
        root_rank: the rank whose values all ranks receive.

    Returns:
        A `tf.Operation`, for `session.run`.
    """
    import tensorflow as tf

    assignments: list[Any] = []
    for variable in tf.compat.v1.global_variables():
        # The control dependency gives the broadcasts the same order on all ranks.
        with tf.control_dependencies(assignments[-1:]):
            value = tf.numpy_function(
                lambda array: ring().broadcast(array, root_rank),
                [variable.read_value()],
                variable.dtype.base_dtype,
            )
        assignments.append(variable.assign(tf.reshape(value, variable.shape)).op)
    return tf.group(*assignments)


def BroadcastGlobalVariablesHook(root_rank: int, device: str = "") -> Any:
    """Return a hook by which the ranks of a `MonitoredTrainingSession` start with equal variables.

    Args:
        root_rank: the rank whose values all ranks receive, also those restored from a checkpoint.
        device: has no effect.
    """
    import tensorflow as tf

    class Hook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.broadcast = broadcast_global_variables(root_rank)

        def after_create_session(self, session: Any, coord: Any) -> None:
            session.run(self.broadcast)

    return Hook()


def _with_reducer_v1(optimizer: Any, reducer: Reducer) -> Any:
    """Make an optimizer of `tf.compat.v1` reduce the gradients that `minimize` applies."""
    compute_gradients = optimizer.compute_gradients

    @functools.wraps(compute_gradients)
    def reduced_gradients(*args: Any, **kwargs: Any) -> Any:
        gradients, variables = zip(*compute_gradients(*args, **kwargs), strict=True)
        return list(zip(reducer(gradients), variables, strict=True))

    optimizer.compute_gradients = reduced_gradients
    return optimizer
