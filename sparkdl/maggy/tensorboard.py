"""Runs in the training process. The folder for a training function's TensorBoard events."""

from sparkdl.tensorboard import logdir

__all__ = ["logdir"]
