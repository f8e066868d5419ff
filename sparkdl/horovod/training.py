"""Runs in the training process. Horovod's optimizer, tape and hook."""

import functools
from collections.abc import Sequence
from typing import Any

from sparkdl.distribute.gradient_reducer import Reducer
from sparkdl.distribute.optimizers import averaging, averaging_tape, resolved
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.world import ring
from sparkdl.horovod.join_operation import announced
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
    """Reduces what ranks that have called `join` take part in.

    Args:
        world, op, wire: see `Reducer`.
        dense: make tensors of `tf.IndexedSlices` first.
        factor: what to multiply the results with.
    """

    def __init__(
        self, world: Ring, op: str, wire: str | None, dense: bool, factor: float = 1.0
    ) -> None:
        super().__init__(world, op, wire)
        self._dense, self._factor = dense, factor

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        if self._dense:
            gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        reduced = list(gradients) if self.ring.is_alone else super().__call__(gradients)
        if self._factor == 1.0:
            return reduced
        return [None if g is None else tf.math.scalar_mul(self._factor, g) for g in reduced]

    def _reduce(self, flat: Any) -> Any:
        return announced(self.ring, flat, self._op, self._pool.take(flat.size, flat.dtype))


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
    """An optimizer whose gradients are averaged over all ranks, see `distribute.optimizer`.

    Args:
        optimizer: of Keras 3, tf_keras or `tf.compat.v1.train`. It is changed, and returned.
        compression: one of `Compression`.
        sparse_as_dense: make tensors of `tf.IndexedSlices`.
        backward_passes_per_step: update after the gradients of so many batches; for Keras 3.
        op: `Average` or `Sum`.
        average_aggregated_gradients: the mean of these batches' gradients, not their sum.
        name, use_locking, device_dense, device_sparse, gradient_predivide_factor, num_groups,
            groups, scale_local_gradients: have no effect.
        process_set: None, see `operations.check_process_set`.

    Raises:
        ValueError: an argument is wrong, or cannot be had.

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
    passes = backward_passes_per_step
    # Keras takes the mean of the batches' gradients.
    factor = 1.0 if average_aggregated_gradients else float(passes)
    reducer = _Reducer(ring(), op, compression, sparse_as_dense, factor)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if passes > 1:
            raise ValueError(
                f"backward_passes_per_step is {passes}; expected 1 for an optimizer of "
                "tf.compat.v1: add the gradients up in the program."
            )
        return _averaging_v1(optimizer, reducer)
    found, package = resolved(optimizer)
    if passes > 1:
        if package.__name__ != "keras":
            raise ValueError(f"backward_passes_per_step is {passes}; expected 1 for tf_keras.")
        found.gradient_accumulation_steps = passes
    return found if ring().is_alone and passes == 1 else averaging(found, package, reducer)


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
    """A `tf.GradientTape` whose gradients are averaged over all ranks.

    Args: see `DistributedOptimizer`; the tape is changed, and returned.

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
    return averaging_tape(gradtape, reducer)


def broadcast_global_variables(root_rank: int) -> Any:
    """The operation of a `tf.compat.v1` graph that gives all ranks rank `root_rank`'s variables.

    Args:
        root_rank: whose values they are.

    Returns:
        A `tf.Operation`, for `session.run`.
    """
    import tensorflow as tf

    given: list[Any] = []
    for variable in tf.compat.v1.global_variables():
        with tf.control_dependencies(given[-1:]):  # In the same order on all ranks.
            value = tf.numpy_function(
                lambda array: ring().broadcast(array, root_rank),
                [variable.read_value()],
                variable.dtype.base_dtype,
            )
        given.append(variable.assign(tf.reshape(value, variable.shape)).op)
    return tf.group(*given)


def BroadcastGlobalVariablesHook(root_rank: int, device: str = "") -> Any:
    """A hook for `tf.compat.v1.train.MonitoredTrainingSession`: ranks start with equal variables.

    Args:
        root_rank: whose values they start with, also those restored from a checkpoint.
        device: has no effect.
    """
    import tensorflow as tf

    class Hook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.given = broadcast_global_variables(root_rank)

        def after_create_session(self, session: Any, coord: Any) -> None:
            session.run(self.given)

    return Hook()


def _averaging_v1(optimizer: Any, reducer: Reducer) -> Any:
    """`tf.compat.v1`: `minimize` applies what `compute_gradients` gives."""
    compute_gradients = optimizer.compute_gradients

    @functools.wraps(compute_gradients)
    def averaged(*args: Any, **kwargs: Any) -> Any:
        gradients, variables = zip(*compute_gradients(*args, **kwargs), strict=True)
        return list(zip(reducer(gradients), variables, strict=True))

    optimizer.compute_gradients = averaged
    return optimizer
