"""Runs in the training process. Load a Keras model whose optimizer averages gradients again."""

import importlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from sparkdl.distribute.strategies import uses_tf_keras
from sparkdl.horovod.tensorflow.compression import Compression
from sparkdl.horovod.tensorflow.training import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model as Keras does, and make its optimizer average gradients over all ranks.

    Args:
        filepath: a model that Keras has saved. A model that was trained with a
            `DistributedOptimizer` is saved as plain Keras.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: other classes and functions by name, see `keras.models.load_model`.
        compression: see `DistributedOptimizer`.
        legacy_opts: has no effect.

    Returns:
        The model, with the state of its optimizer.

    Example:
        >>> import keras, sparkdl.horovod.keras as hvd
        >>> model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(0.5), "mse")
        >>> model.optimizer.build(model.trainable_variables)  # As training does.
        >>> model.save("model.keras")
        >>> float(hvd.load_model("model.keras").optimizer.learning_rate)
        0.5
    """
    keras: Any = importlib.import_module("tf_keras" if uses_tf_keras(os.environ) else "keras")
    optimizers = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
    model = keras.models.load_model(
        filepath, custom_objects={**optimizers, **(custom_objects or {})}
    )
    if getattr(model, "optimizer", None):
        # The loaded optimizer keeps its state.
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
