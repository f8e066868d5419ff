"""Runs in the training process. Batch normalization over the batches of all ranks."""

import os
from typing import Any

import tensorflow as tf

from sparkdl.distribute.strategies import uses_tf_keras
from sparkdl.horovod.ranks import size
from sparkdl.horovod.tensorflow.collectives import allreduce


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """A `BatchNormalization` whose mean and variance are those of all ranks' batches.

    Args:
        fused: must be False: the fused operation cannot communicate.
        **kwargs: arguments of `keras.layers.BatchNormalization`.

    Raises:
        ValueError: if `fused` is not False.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.SyncBatchNormalization(momentum=0.9).momentum
        0.9
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused is not False:
            raise ValueError(f"fused is {fused!r}; expected False: fused code cannot communicate.")
        # Keras 3 has no such argument; tf_keras would choose the fused operation by itself.
        choice = {"fused": False} if uses_tf_keras(os.environ) else {}
        super().__init__(**{"name": "sync_batch_normalization", **kwargs, **choice})

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if size() == 1:
            return mean, variance
        # Var[X] = E[X^2] - E[X]^2
        mean, mean_of_squares = tf.unstack(allreduce(tf.stack([mean, variance + mean**2])))
        return mean, mean_of_squares - mean**2
