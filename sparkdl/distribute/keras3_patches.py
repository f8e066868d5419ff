"""Runs in the training process. Correct Keras 3 under MultiWorkerMirroredStrategy.

Keras 3 has faults with several workers:

- Before `fit`, its trainer asks the strategy for the mean of a batch, a tuple, to infer shapes
  (github.com/keras-team/keras/issues/20585).
- The trainer takes the mean of each step's logs over axis 0, which scalars do not have (the same
  issue).
- The moving statistics of BatchNorm are not synchronised, so that each worker would evaluate and
  save a different model.
- When the rows run out, a worker receives an empty batch. The mean of the batch is NaN in
  BatchNorm, and then in the model.
- `steps_per_execution` above 1 fails: the graph of the loop that Keras builds is invalid with
  collectives in it.
- Optimizers clip, check, accumulate and average before they sum, see `keras3_optimizers`; under
  MirroredStrategy too.
- Metrics that were created outside the scope count the rows of one worker, without an error.
- `predict_on_batch` returns the rows of all workers, each of which has predicted all of them.
- Up to Keras 3.7, gradients are too long, see `keras3_losses`; up to Keras 3.9, metrics count
  wrongly, see `keras3_metrics`.
"""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from sparkdl.distribute import keras3_losses, keras3_metrics, keras3_optimizers
from sparkdl.distribute.keras3_names import Name, require

_TRAINER = "keras.src.backend.tensorflow.trainer"
_NORM = "keras.src.layers.normalization.batch_normalization"
NAMES = (
    Name(_TRAINER, "TensorFlowTrainer._maybe_symbolic_build", ("iterator", "data_batch")),
    Name(_TRAINER, "TensorFlowTrainer.fit", ("callbacks",), uses=("_maybe_symbolic_build",)),
    Name(_TRAINER, "TensorFlowTrainer", uses=("_distribute_strategy", "reduce_per_replica")),
    Name(_TRAINER, "TensorFlowTrainer.distribute_strategy"),
    Name(_TRAINER, "TensorFlowTrainer.predict_on_batch", ("x",), uses=("predict_function",)),
    Name(_TRAINER, "TFEpochIterator.__init__", uses=("_distributed_dataset",)),
    Name(_TRAINER, "reduce_per_replica", ("values", "strategy", "reduction")),
    Name("keras.src.trainers.trainer", "Trainer._symbolic_build", ("data_batch",)),
    Name(
        "keras.src.trainers.trainer",
        "Trainer.compile",
        ("metrics", "weighted_metrics", "steps_per_execution"),
    ),
    Name("keras.src.layers.layer", "Layer._flatten_layers"),
    Name("keras.src.layers.layer", "Layer", uses=("_non_trainable_variables",)),
    Name(_NORM, "BatchNormalization._moments", ("inputs", "mask")),
    Name(
        _NORM,
        "BatchNormalization",
        uses=("_moments", "synchronized", "moving_mean", "moving_variance"),
    ),
)


def apply() -> None:
    """Patch Keras in this process; models on a single process behave as before.

    Raises:
        RuntimeError: if this Keras lacks a name that a correction needs; nothing is patched then.
    """
    lacks_division = not keras3_losses.DIVIDES.exists
    lacks_synchronization = not keras3_metrics.SYNCHRONIZES.exists
    names = [*NAMES, *keras3_optimizers.NAMES]
    names += keras3_losses.NAMES if lacks_division else ()
    names += keras3_metrics.NAMES if lacks_synchronization else ()
    require(names)
    _apply()
    keras3_optimizers.apply(_has_several_replicas)
    if lacks_division:
        keras3_losses.apply(_has_several_replicas)
    if lacks_synchronization:
        keras3_metrics.apply()


def _apply() -> None:
    from keras.src.backend.tensorflow import trainer
    from keras.src.layers import BatchNormalization
    from keras.src.trainers.trainer import Trainer

    cls = trainer.TensorFlowTrainer
    cls._maybe_symbolic_build = _maybe_symbolic_build
    trainer.reduce_per_replica = _with_mean_of_logs(trainer.reduce_per_replica)
    cls.fit = _with_averaged_statistics(cls.fit)
    # In the class that defines the method: loading a model does not compile one that overrides it.
    Trainer.compile = _in_scope(Trainer.compile)
    BatchNormalization._moments = _with_moments_of_empty_batches(BatchNormalization._moments)
    cls.predict_on_batch = _by_predict(cls.predict_on_batch)


def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
    """Build the model, its metrics, loss and optimizer, before the first step is traced."""
    if self._distribute_strategy is None:
        return
    if iterator is not None:
        data_batch = _example_batch(iterator._distributed_dataset, self._distribute_strategy)
    with self._distribute_strategy.scope():
        self._symbolic_build(data_batch=data_batch)


def _example_batch(dataset: Any, strategy: Any) -> Any:
    """Return values with the shapes, dtypes and structure of a replica's batch.

    The element spec of the dataset is sufficient if its shapes are known. Reading a batch consumes
    it, if the data can be read only once, and fills every shuffle buffer in vain.
    """
    import tensorflow as tf
    from keras import tree

    def local(spec: Any) -> Any:
        spec = spec._value_specs[0] if hasattr(spec, "_value_specs") else spec
        # Sample weights that are not given have no shape.
        return spec if hasattr(spec, "shape") else None

    specs = tree.map_structure(local, dataset.element_spec)
    if all(
        tf.TensorShape(spec.shape)[1:].is_fully_defined()
        for spec in tree.flatten(specs)
        if spec is not None
    ):
        return specs
    batch = next(iter(dataset))
    return tree.map_structure(lambda v: strategy.experimental_local_results(v)[0], batch)


def _with_mean_of_logs(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `reduce_per_replica`: several workers average all logs of a step in one collective."""
    import tensorflow as tf
    from keras import tree

    def pack(leaves: list[Any]) -> Any:
        return tf.concat([tf.reshape(tf.cast(leaf, tf.float64), [-1]) for leaf in leaves], 0)

    def mean(values: Any, strategy: Any) -> Any:
        leaves = tree.flatten(values)
        means = strategy.reduce("MEAN", strategy.run(pack, (leaves,)), axis=None)
        local = [tf.convert_to_tensor(strategy.experimental_local_results(v)[0]) for v in leaves]
        parts = tf.split(means, [tf.size(v) for v in local])
        shaped = [
            tf.cast(tf.reshape(part, tf.shape(v)), v.dtype)
            for part, v in zip(parts, local, strict=True)
        ]
        return tree.pack_sequence_as(values, shaped)

    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if _has_several_workers(strategy) and reduction in ("auto", "mean"):
            return mean(values, strategy)
        return original(values, strategy, reduction)

    return reduce_per_replica


def _has_several_workers(strategy: Any) -> bool:
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def _has_several_replicas(strategy: Any) -> bool:
    """Return True for several workers, and for a worker with several GPUs."""
    import tensorflow as tf

    kinds = tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.MirroredStrategy
    return isinstance(strategy, kinds) and strategy.num_replicas_in_sync > 1


def _with_moments_of_empty_batches(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `BatchNormalization._moments`: an empty batch gets the moving statistics."""
    import tensorflow as tf

    @functools.wraps(original)
    def _moments(self: Any, inputs: Any, mask: Any) -> Any:
        mean, variance = original(self, inputs, mask)
        if self.synchronized:
            return mean, variance  # They are computed over the rows of all workers.
        has_rows = tf.size(inputs) > 0
        return (
            tf.where(has_rows, mean, tf.cast(self.moving_mean, mean.dtype)),
            tf.where(has_rows, variance, tf.cast(self.moving_variance, variance.dtype)),
        )

    return _moments


def _with_averaged_statistics(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `fit`: average moving statistics before each validation and each end of an epoch."""
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def fit_and_average(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _has_several_workers(self.distribute_strategy):
            return fit(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        add_callbacks(bound, _averaging_callback(self))
        return fit(*bound.args, **bound.kwargs)

    return fit_and_average


def _in_scope(compile_: Callable[..., None]) -> Callable[..., None]:
    """Wrap `compile`: create metrics in the model's scope; otherwise each worker has its own."""
    signature = inspect.signature(compile_)

    @functools.wraps(compile_)
    def compile_in_scope(self: Any, *args: Any, **kwargs: Any) -> None:
        if not _has_several_workers(self.distribute_strategy):
            return compile_(self, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs).arguments
        with self.distribute_strategy.scope():
            compile_(self, *args, **kwargs)
        metrics = [arguments.get("metrics"), arguments.get("weighted_metrics"), self.metrics]
        _check_metrics(metrics, self.distribute_strategy)
        if self.steps_per_execution != 1:
            warnings.warn(
                f"steps_per_execution={self.steps_per_execution} does not work in Keras 3 with "
                "several workers; 1 is used instead.",
                stacklevel=2,
            )
            self.steps_per_execution = 1
        return None

    return compile_in_scope


def _check_metrics(metrics: Any, strategy: Any) -> None:
    """Validate that metrics were created in the scope of a strategy.

    Args:
        metrics: metrics and names, in any structure.
        strategy: the strategy of the model.

    Raises:
        ValueError: if a metric was created elsewhere.
    """
    import keras

    for metric in keras.tree.flatten(metrics):
        variables = metric.variables if isinstance(metric, keras.metrics.Metric) else []
        if not all(strategy.extended.variable_created_in_scope(v.value) for v in variables):
            raise ValueError(
                f"the metric {metric.name!r} was created outside the scope of the model's "
                "strategy, and would count the rows of one worker only. Create it under "
                "`with distribute.strategy().scope():`, or pass its name to compile."
            )


def _by_predict(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `predict_on_batch`: several workers share the rows, as in `predict`."""
    from keras import tree

    @functools.wraps(original)
    def predict_on_batch(self: Any, x: Any) -> Any:
        if not _has_several_workers(self.distribute_strategy):
            return original(self, x)
        num_rows = len(tree.flatten(x)[0])
        return self.predict(x, batch_size=num_rows, verbose=0)

    return predict_on_batch


def add_callbacks(bound: inspect.BoundArguments, first: Any, *last: Any) -> None:
    """Add callbacks to the arguments of a call of `fit`.

    Args:
        bound: the arguments, which are modified.
        first: a callback to call before the user's callbacks.
        *last: callbacks to call after the user's callbacks.
    """
    callbacks: Any = bound.arguments.get("callbacks")
    if hasattr(callbacks, "callbacks"):  # Keras uses a CallbackList as it is.
        callbacks.callbacks[:] = [first, *callbacks.callbacks, *last]
        return
    if not isinstance(callbacks, list | tuple):
        callbacks = [callbacks] if callbacks else []
    bound.arguments["callbacks"] = [first, *callbacks, *last]


def _averaging_callback(model: Any) -> Any:
    """Return a callback that averages the statistics before other callbacks save them."""
    import keras

    class AverageStatistics(keras.callbacks.Callback):  # type: ignore[misc]
        is_due = False

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.is_due = True

        def on_test_begin(self, logs: Any = None) -> None:
            if self.is_due:
                average()
            self.is_due = False

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.on_test_begin()

    average = _averager(model)
    return AverageStatistics()


def _averager(model: Any) -> Callable[[], None]:
    """Return a function that averages the moving statistics of a model over all workers."""
    import tensorflow as tf

    def average() -> None:
        if variables := moving_statistics(model):
            model.distribute_strategy.run(assign, (variables,))

    def assign(variables: list[Any]) -> None:
        replica = tf.distribute.get_replica_context()
        means = replica.all_reduce("MEAN", [tf.identity(v) for v in variables])
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(mean)

    traced: Callable[[], None] = tf.function(average, autograph=False)
    return traced


def moving_statistics(model: Any) -> list[Any]:
    """Return the floating-point variables that trainable layers update from batches.

    Works for models of tf_keras too.
    """
    variables = []
    for layer in model._flatten_layers():
        names = ("_non_trainable_variables", "_non_trainable_weights")
        of_layer = next(getattr(layer, name) for name in names if hasattr(layer, name))
        # A Keras 3 variable holds the TensorFlow variable as its value.
        variables += [getattr(v, "_value", v) for v in of_layer] if layer.trainable else []
    return [variable for variable in variables if variable.dtype.is_floating]
