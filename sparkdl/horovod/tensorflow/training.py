"""Runs in the training process. Horovod's optimizers and gradient tapes."""

import copy
from collections.abc import Callable, Iterable, Sequence
from types import MethodType
from typing import Any

import tensorflow as tf

from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.gradient_reducer import Reducer
from sparkdl.distribute.optimizers import resolve_optimizer, with_reducer, with_reducer_on_tape
from sparkdl.distribute.ring import Ring
from sparkdl.horovod.agreement import agree, describe, together
from sparkdl.horovod.process_sets import ProcessSet, global_process_set, own_ring
from sparkdl.horovod.reduction_ops import Average, Sum, operation
from sparkdl.horovod.tensorflow.aggregation import GradientAggregation
from sparkdl.horovod.tensorflow.compression import Compression
from sparkdl.horovod.tensorflow.computed_gradients import reduce_computed_gradients
from sparkdl.horovod.tensorflow.session_order import collective_scope, session_ring
from sparkdl.horovod.tensorflow.tensors import call_on_arrays


class _Reducer(Reducer):
    """Reduces gradients together with ranks that have called `join`.

    Args:
        process_set: the ranks that take part; others keep their gradients.
        op, wire_dtype: see `Reducer`.
        sparse_as_dense: convert `tf.IndexedSlices` to tensors first.
        predivide_factor: gradients are divided by it before the reduction, and multiplied after it.
        factor: factor applied to the results.
        scales_local: divide the gradients of local variables by the number of ranks.
    """

    evaluates_together = False  # Programs of Horovod evaluate on rank 0 alone.
    _votes_with_gradients = False  # The ranks agree on each reduction first.
    _checks_variables = False  # Programs of Horovod broadcast after the first step.

    def __init__(
        self,
        process_set: ProcessSet,
        op: str,
        wire_dtype: str | None,
        sparse_as_dense: bool,
        predivide_factor: float = 1.0,
        factor: float = 1.0,
        scales_local: bool = True,
    ) -> None:
        super().__init__(own_ring(process_set), op, wire_dtype)
        self._process_set = process_set
        self._sparse_as_dense = sparse_as_dense
        self._predivide_factor = predivide_factor
        self._factor = factor
        self._scales_local = scales_local
        self._local: set[int] = set()

    def add_local(self, variables: Iterable[Any]) -> None:
        """Exclude variables: each rank keeps its own gradients of them."""
        self._local |= {_identity(variable) for variable in variables}

    def is_local(self, variable: Any) -> bool:
        """Return True if each rank keeps its own gradient of a variable."""
        return _identity(variable) in self._local

    def reduce_for(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        results = list(gradients)
        shared = [i for i, variable in enumerate(variables) if not self.is_local(variable)]
        for i, gradient in zip(shared, self([gradients[i] for i in shared]), strict=True):
            results[i] = gradient
        factor = self._factor / (self.ring.size if self._scales_local else 1)
        for i in set(range(len(results))) - set(shared):
            results[i] = _scale(results[i], factor)
        return results

    def keep(self, gradient: Any) -> Any:
        return _scale(gradient, self._factor)

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        if self._sparse_as_dense:
            gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        if self.ring.is_alone:
            reduced = list(gradients)
        else:
            before = 1 / self._predivide_factor
            after = self._predivide_factor
            gradients = [_scale(gradient, before) for gradient in gradients]
            reduced = Reducer.__call__(self._of_this_graph(), gradients)
            reduced = [_scale(gradient, after) for gradient in reduced]
        return [_scale(gradient, self._factor) for gradient in reduced]

    def _of_this_graph(self) -> "_Reducer":
        """Return this reducer; in a graph of `tf.compat.v1`, a copy that its session orders."""
        is_eager = tf.compat.v1.executing_eagerly_outside_functions()
        if is_eager or isinstance(self.ring, ElasticRing):
            return self
        reducer = copy.copy(self)
        reducer.ring = session_ring(self._process_set)
        return reducer

    def _call(self, function: Callable[..., Any], tensors: list[Any], dtypes: list[Any]) -> Any:
        is_eager = tf.compat.v1.executing_eagerly_outside_functions()
        if not is_eager and isinstance(self.ring, ElasticRing):
            return super()._call(function, tensors, dtypes)

        def gradients(ring: Ring, *arrays: Any) -> Any:
            return function(*arrays)

        # It tells a disagreement as FailedPreconditionError.
        shapes = [None for _ in dtypes]
        with collective_scope(gradients, tensors):
            return call_on_arrays(gradients, self._process_set, tensors, dtypes, shapes)

    def _reduce_flat(self, flat: Any) -> Any:
        parts = [[flat.dtype.name, flat.size, self._op]]
        with together(self.ring):
            agree(self.ring, describe("allreduce", [flat], parts=parts))
            return super()._reduce_flat(flat)

    def _gather(self, rows: Any) -> tuple[Any, list[int]]:
        with together(self.ring):
            agree(self.ring, describe("allgather", [rows], rows_differ=True))
            return super()._gather(rows)


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
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer average its gradients over all ranks, see `distribute.optimizer`.

    The optimizer gets a method `register_local_var(variable)`: each rank keeps its own gradients
    of such a variable.

    Args:
        optimizer: an optimizer of Keras 3, tf_keras or `tf.compat.v1.train`. It is modified and
            returned.
        compression: an attribute of `Compression`.
        sparse_as_dense: convert `tf.IndexedSlices` to tensors.
        backward_passes_per_step: number of batches whose gradients make up one update.
        op: `Average` or `Sum`.
        gradient_predivide_factor: gradients are divided by it before they are summed up, and
            multiplied by it afterwards, which avoids overflows of float16.
        average_aggregated_gradients: use the mean of these batches' gradients, not their sum.
        process_set: the ranks that take part; others keep their own gradients.
        scale_local_gradients: divide the gradients of local variables by the number of ranks.
        name, use_locking, device_dense, device_sparse, num_groups, groups: have no effect.

    Raises:
        ValueError: if an argument is invalid or not supported.

    Example:
        >>> import keras, sparkdl.horovod as hvd
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5 * hvd.size()))
        >>> float(optimizer.learning_rate)
        0.5
    """
    _check(op, gradient_predivide_factor, groups)
    num_passes = backward_passes_per_step
    is_keras3 = not isinstance(optimizer, tf.compat.v1.train.Optimizer)
    if is_keras3:
        optimizer, package = resolve_optimizer(optimizer)
        is_keras3 = package.__name__ == "keras"
    # Keras 3 takes the mean of the batches' gradients.
    takes_sum = is_keras3 and not average_aggregated_gradients
    reducer = _Reducer(
        process_set,
        op,
        compression.wire_dtype,
        sparse_as_dense,
        gradient_predivide_factor,
        float(num_passes) if takes_sum else 1.0,
        scale_local_gradients,
    )
    if is_keras3:
        if num_passes > 1:
            optimizer.gradient_accumulation_steps = num_passes
        if not reducer.ring.is_alone or num_passes > 1:
            optimizer = with_reducer(optimizer, package, reducer)
    else:
        aggregation = None
        if num_passes > 1:
            averages = average_aggregated_gradients
            aggregation = GradientAggregation(num_passes, reducer.reduce_for, averages)
        optimizer = reduce_computed_gradients(optimizer, reducer, aggregation)
    return _with_local_variables(optimizer, reducer)


def PartialDistributedOptimizer(
    optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any
) -> Any:
    """Make an optimizer average its gradients, but for those of some layers.

    Args:
        optimizer: see `DistributedOptimizer`.
        *args, **kwargs: further arguments of `DistributedOptimizer`.
        local_layers: a layer or layers, built before, whose gradients each rank keeps; `fit` then
            leaves their weights, moving statistics and momentums as they are on each rank.

    Example:
        >>> import keras, sparkdl.horovod as hvd
        >>> own = keras.layers.Dense(1)
        >>> optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=own)
    """
    return with_local_layers(DistributedOptimizer(optimizer, *args, **kwargs), local_layers)


def with_local_layers(optimizer: Any, layers: Any) -> Any:
    """Let each rank keep its own gradients of some layers, and return the optimizer.

    Args:
        optimizer: what `DistributedOptimizer` has returned.
        layers: a layer or layers, built before.
    """
    for variable in _variables_of(layers):
        optimizer.register_local_var(variable)
    return optimizer


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
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make a `tf.GradientTape` return gradients that are averaged over all ranks.

    The tape gets the methods `register_local_source(variable)`, for variables of which each rank
    keeps its own gradients, and `get_local_and_global_gradients(target, sources)`, which returns
    a list of the pairs of such variables and their gradients, and one of the others. Its method
    `gradient` ignores Horovod's argument `use_generic_names`.

    Args:
        gradtape: a tape, before or after its `with` block. It is modified and returned.
        compression, sparse_as_dense, op, gradient_predivide_factor, process_set,
            scale_local_gradients: see `DistributedOptimizer`.
        device_dense, device_sparse, num_groups, groups: have no effect.

    Example:
        >>> import tensorflow as tf, sparkdl.horovod as hvd
        >>> x = tf.Variable(3.0)
        >>> with tf.GradientTape() as tape:
        ...     y = x * x
        >>> float(hvd.DistributedGradientTape(tape).gradient(y, x))
        6.0
    """
    _check(op, gradient_predivide_factor, groups)
    reducer = _Reducer(
        process_set,
        op,
        compression.wire_dtype,
        sparse_as_dense,
        gradient_predivide_factor,
        scales_local=scale_local_gradients,
    )
    tape = with_reducer_on_tape(gradtape, reducer)
    reduced_gradient = tape.gradient

    def gradient(*args: Any, use_generic_names: bool = False, **kwargs: Any) -> Any:
        return reduced_gradient(*args, **kwargs)

    def separately(target: Any, sources: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        pairs = list(zip(sources, tape.gradient(target, sources, *args, **kwargs), strict=True))
        local = [pair for pair in pairs if reducer.is_local(pair[0])]
        return local, [pair for pair in pairs if not reducer.is_local(pair[0])]

    tape.gradient = tf.autograph.experimental.do_not_convert(gradient)
    tape.register_local_source = lambda source: reducer.add_local([source])
    tape.get_local_and_global_gradients = separately
    return tape


def PartialDistributedGradientTape(
    gradtape: Any, *args: Any, local_layers: Any = None, **kwargs: Any
) -> Any:
    """Make a `tf.GradientTape` return averaged gradients, but for those of some layers.

    Args:
        gradtape: see `DistributedGradientTape`.
        *args, **kwargs: further arguments of `DistributedGradientTape`.
        local_layers: see `PartialDistributedOptimizer`.
    """
    tape = DistributedGradientTape(gradtape, *args, **kwargs)
    for variable in _variables_of(local_layers):
        tape.register_local_source(variable)
    return tape


def _check(op: str, predivide_factor: float, groups: Any) -> None:
    if operation(op) not in (Average, Sum):
        raise ValueError(f"op is {op!r}; expected hvd.Average or hvd.Sum for gradients.")
    if predivide_factor != 1.0 and op != Average:
        raise ValueError(
            f"gradient_predivide_factor is {predivide_factor!r} with op={op!r}; expected "
            "op=hvd.Average with it."
        )
    if groups is not None and not (isinstance(groups, list) or groups > 0):
        raise ValueError(
            f"groups is {groups!r}; expected a positive number or a list of lists of variables."
        )


def _with_local_variables(optimizer: Any, reducer: _Reducer) -> Any:
    def register_local_var(self: Any, var: Any) -> None:
        """Let each rank keep its own gradients of a variable."""
        reducer.add_local([var])

    object.__setattr__(optimizer, "register_local_var", MethodType(register_local_var, optimizer))
    return optimizer


def _variables_of(layers: Any) -> list[Any]:
    """Return the weights of a layer or of several, moving statistics included.

    Raises:
        ValueError: if they are no layers.
    """
    each = layers if isinstance(layers, list | tuple) else [] if layers is None else [layers]
    if not all(hasattr(layer, "trainable_weights") for layer in each):
        raise ValueError(
            f"local_layers is {layers!r}; expected a layer of Keras, or a list of them."
        )
    return [variable for layer in each for variable in layer.weights]


def _identity(variable: Any) -> int:
    """Return the number of a variable, the same for a Keras variable and the one inside it."""
    is_plain = isinstance(variable, tf.Variable | tf.Tensor)
    return id(variable if is_plain else variable.value)


def _scale(gradient: Any, factor: float) -> Any:
    """Return a gradient multiplied by a factor; None stays None."""
    return gradient if gradient is None or factor == 1.0 else tf.math.scalar_mul(factor, gradient)
