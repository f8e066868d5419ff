"""Runs in the training process. The folder for a training function's TensorBoard events."""

from sparkdl import tensorboard
from sparkdl.hops.absent_names import absent_names

__all__ = ["logdir"]

__getattr__ = absent_names(__name__, __all__)


def logdir() -> str:
    """Return the folder for this trial's event files and other files; it ends with a slash.

    The folder is always on a local disk, as with `local_logdir=True`. Its files end up in the
    folder `tensorboard` of the trial. Between `experiment.begin` and `experiment.end`, it is the
    folder of that experiment.

    Example:
        >>> logdir().endswith("tensorboard/")
        True
    """
    return f"{tensorboard.logdir()}/"
