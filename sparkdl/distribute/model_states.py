"""Runs in the training process. Write and read the weights and the optimizer of a Keras model."""

import os
from typing import Any


def write_model(model: Any, directory: str, legacy: bool) -> None:
    """Write the weights and the state of the optimizer into a directory.

    Args:
        model: a compiled model.
        directory: the directory.
        legacy: the model is one of tf_keras, whose `save_weights` does not save the optimizer.
    """
    if legacy:
        import tensorflow as tf

        tf.train.Checkpoint(model=model).write(os.path.join(directory, "model"))
    else:
        model.save_weights(os.path.join(directory, "model.weights.h5"))


def read_model(model: Any, directory: str, legacy: bool) -> None:
    """Read what `write_model` has written.

    Args:
        model: a compiled model with weights.
        directory: the directory.
        legacy: the model is one of tf_keras.
    """
    _build(model.optimizer, model.trainable_variables)
    if legacy:
        import tensorflow as tf

        tf.train.Checkpoint(model=model).read(os.path.join(directory, "model"))
    else:
        model.load_weights(os.path.join(directory, "model.weights.h5"))


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Create the variables of an optimizer, which a `fit` that is over would not create."""
    if getattr(optimizer, "built", False):
        return
    # A legacy optimizer of tf_keras has no `build`. Both do nothing if the variables exist.
    for method in ("build", "_create_all_weights"):
        if hasattr(optimizer, method):
            getattr(optimizer, method)(variables)
            return
