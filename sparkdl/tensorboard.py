"""Runs in the training process. Where a training function's TensorBoard events go."""

from sparkdl import context

__all__ = ["logdir"]


def logdir() -> str:
    """The folder for this trial's event files: `keras.callbacks.TensorBoard(tensorboard.logdir())`.

    It is local to the process. In a run it ends up in the run directory, so that
    `tensorboard --logdir <run.path>` shows all trials side by side. Outside a run it is
    `runs/local/tensorboard` below the working folder.

    Example:
        >>> from sparkdl import tensorboard
        >>> tensorboard.logdir().endswith("tensorboard")
        True
    """
    return context.current().logdir
