"""Runs in the training process. Write and read the weights and the optimizer of a Keras model."""

import os
from typing import Any

__all__ = ["read_model", "write_model"]


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
    if not getattr(model.optimizer, "built", True):
        model.optimizer.build(model.trainable_variables)
    if legacy:
        import tensorflow as tf

        tf.train.Checkpoint(model=model).read(os.path.join(directory, "model"))
    else:
        model.load_weights(os.path.join(directory, "model.weights.h5"))
