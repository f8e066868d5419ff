"""Runs in the training process. The folder for a training function's TensorBoard events."""

from sparkdl import context

__all__ = ["logdir"]


def logdir() -> str:
    """Return the folder for this trial's event files.

    Pass it to `keras.callbacks.TensorBoard(tensorboard.logdir())`. The folder is local to the
    process. In a run, its files end up in the run directory, so that
    `tensorboard --logdir <run.path>` shows all trials side by side. Outside a run it is
    `runs/local/tensorboard` below the working folder.

    Example:
        >>> from sparkdl import tensorboard
        >>> tensorboard.logdir().endswith("tensorboard")
        True
    """
    return context.current().logdir
