"""Runs in the training process.

What Keras 3 lacks under MultiWorkerMirroredStrategy with several workers.

Two faults of its trainer are github.com/keras-team/keras/issues/20585: before `fit` it asks the
strategy for the mean of a batch, a tuple, to learn its shapes; and it takes the mean of each
step's logs over axis 0, which scalars do not have. BatchNorm has two more. Nothing synchronises
its moving statistics, so that each worker would evaluate and save another model. And where the
rows run out, a worker is given a batch of none, whose mean is NaN, and so is the model then. Last,
`steps_per_execution` above 1 fails: collectives in the loop that it makes have no valid graph.
"""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["add_callbacks", "correct", "statistics"]


def correct() -> None:
    """Correct Keras in this process; nothing changes for models on a single process."""
    from keras.src.backend.tensorflow import trainer
    from keras.src.layers import BatchNormalization

    kind = trainer.TensorFlowTrainer
    kind._maybe_symbolic_build = _maybe_symbolic_build
    trainer.reduce_per_replica = _mean_of_logs(trainer.reduce_per_replica)
    kind.fit = _with_average(kind.fit)
    kind.compile = _in_scope(kind.compile)
    BatchNormalization._moments = _moments_of_some(BatchNormalization._moments)


def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
    """Build the model, its metrics, loss and optimizer, before the first step is traced."""
    if self._distribute_strategy is None:
        return
    if iterator is not None:
        data_batch = _example(iterator._distributed_dataset, self._distribute_strategy)
    with self._distribute_strategy.scope():
        self._symbolic_build(data_batch=data_batch)


def _example(dataset: Any, strategy: Any) -> Any:
    """What a replica's batch looks like: anything with shape and dtype in the batch's structure.

    The dataset itself knows, as a rule. Reading a batch takes it from a feed that can be read
    only once, and fills every shuffle buffer in vain.
    """
    import tensorflow as tf
    from keras import tree

    def local(spec: Any) -> Any:
        spec = spec._value_specs[0] if hasattr(spec, "_value_specs") else spec
        return spec if hasattr(spec, "shape") else None  # Optional sample weights are not there.

    specs = tree.map_structure(local, dataset.element_spec)
    if all(
        tf.TensorShape(spec.shape)[1:].is_fully_defined()
        for spec in tree.flatten(specs)
        if spec is not None
    ):
        return specs
    batch = next(iter(dataset))
    return tree.map_structure(lambda v: strategy.experimental_local_results(v)[0], batch)


def _mean_of_logs(original: Callable[..., Any]) -> Callable[..., Any]:
    """`reduce_per_replica` with all of a step's logs in one message."""
    import tensorflow as tf
    from keras import tree

    def pack(leaves: list[Any]) -> Any:
        return tf.concat([tf.reshape(tf.cast(leaf, tf.float64), [-1]) for leaf in leaves], 0)

    def mean(values: Any, strategy: Any) -> Any:
        leaves = tree.flatten(values)
        means = strategy.reduce("MEAN", strategy.run(pack, (leaves,)), axis=None)
        shown = [tf.convert_to_tensor(strategy.experimental_local_results(v)[0]) for v in leaves]
        parts = tf.split(means, [tf.size(v) for v in shown])
        shaped = [
            tf.cast(tf.reshape(part, tf.shape(v)), v.dtype)
            for part, v in zip(parts, shown, strict=True)
        ]
        return tree.pack_sequence_as(values, shaped)

    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if _several_workers(strategy) and reduction in ("auto", "mean"):
            return mean(values, strategy)
        return original(values, strategy, reduction)

    return reduce_per_replica


def _several_workers(strategy: Any) -> bool:
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def _moments_of_some(original: Callable[..., Any]) -> Callable[..., Any]:
    """`BatchNormalization._moments` that takes the moving ones for a batch without rows."""
    import tensorflow as tf

    @functools.wraps(original)
    def _moments(self: Any, inputs: Any, mask: Any) -> Any:
        mean, variance = original(self, inputs, mask)
        if self.synchronized:
            return mean, variance  # Those of all workers' rows.
        some = tf.size(inputs) > 0
        return (
            tf.where(some, mean, tf.cast(self.moving_mean, mean.dtype)),
            tf.where(some, variance, tf.cast(self.moving_variance, variance.dtype)),
        )

    return _moments


def _with_average(fit: Callable[..., Any]) -> Callable[..., Any]:
    """`fit` that averages moving statistics before each validation and each end of an epoch."""
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def fit_and_average(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _several_workers(self.distribute_strategy):
            return fit(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        add_callbacks(bound, _averaging(self))
        return fit(*bound.args, **bound.kwargs)

    return fit_and_average


def _in_scope(compile_: Callable[..., None]) -> Callable[..., None]:
    """`compile` that makes its metrics in the model's scope, else each worker has its own."""

    @functools.wraps(compile_)
    def compile_in_scope(self: Any, *args: Any, **kwargs: Any) -> None:
        if not _several_workers(self.distribute_strategy):
            return compile_(self, *args, **kwargs)
        with self.distribute_strategy.scope():
            compile_(self, *args, **kwargs)
        if self.steps_per_execution != 1:
            warnings.warn(
                f"steps_per_execution={self.steps_per_execution} does not work in Keras 3 with "
                "several workers; 1 is used instead.",
                stacklevel=2,
            )
            self.steps_per_execution = 1
        return None

    return compile_in_scope


def add_callbacks(bound: inspect.BoundArguments, first: Any, *last: Any) -> None:
    """Give a call of `fit` one more callback before the person's, and more behind them."""
    given: Any = bound.arguments.get("callbacks")
    if hasattr(given, "callbacks"):  # A CallbackList, which is used as it is.
        given.callbacks[:] = [first, *given.callbacks, *last]
        return
    several = given if isinstance(given, list | tuple) else [given] if given else []
    bound.arguments["callbacks"] = [first, *several, *last]


def _averaging(model: Any) -> Any:
    """What averages the statistics before other callbacks save them."""
    import keras

    class AverageStatistics(keras.callbacks.Callback):  # type: ignore[misc]
        due = False

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.due = True

        def on_test_begin(self, logs: Any = None) -> None:
            if self.due:
                average()
            self.due = False

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.on_test_begin()

    average = _averager(model)
    return AverageStatistics()


def _averager(model: Any) -> Callable[[], None]:
    import tensorflow as tf

    def average() -> None:
        if variables := statistics(model):
            model.distribute_strategy.run(assign, (variables,))

    def assign(variables: list[Any]) -> None:
        replica = tf.distribute.get_replica_context()
        means = replica.all_reduce("MEAN", [tf.identity(v) for v in variables])
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(mean)

    traced: Callable[[], None] = tf.function(average, autograph=False)
    return traced


def statistics(model: Any) -> list[Any]:
    """The variables that layers update as they see batches: of a frozen layer there are none.

    Works for models of tf_keras too.
    """
    found = []
    for layer in model._flatten_layers():
        names = ("_non_trainable_variables", "_non_trainable_weights")
        own = next(getattr(layer, name) for name in names if hasattr(layer, name))
        # A variable of Keras 3 has that of TensorFlow as its value.
        found += [getattr(v, "_value", v) for v in own] if layer.trainable else []
    return [variable for variable in found if variable.dtype.is_floating]
