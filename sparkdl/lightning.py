"""Runs in the training process. A callback for the `Trainer` of Lightning."""

import tempfile
from pathlib import Path
from typing import Any

from sparkdl import context
from sparkdl.host.optional_packages import require

require("lightning", "sparkdl.lightning")

from lightning.pytorch import callbacks  # noqa: E402 After the message of its absence.

__all__ = ["Checkpoint"]

_FILE = "model.ckpt"


# Lightning calls callbacks of this class after all others, whose states are in the checkpoint, and
# adds no ModelCheckpoint of its own.
class Checkpoint(callbacks.Checkpoint):  # type: ignore[misc]
    """Reports the metrics of each epoch, and commits a checkpoint of the Trainer.

    In a gang, all ranks use it. With a strategy with which each rank saves its part of the model,
    such as FSDP, the parts become one checkpoint. It takes the place of Lightning's
    ModelCheckpoint.

    Args:
        every_epochs: number of epochs from one checkpoint to the next. The last epoch of the
            training has one too.
        wait: False to commit while the training goes on, see `context.report`.

    Raises:
        ValueError: if `every_epochs` is less than one.

    Example:
        >>> from sparkdl.lightning import Checkpoint
        >>> Checkpoint.path() is None  # No checkpoint was committed yet.
        True

        With a Trainer, which goes on from the last checkpoint after a restart:

        trainer = lightning.Trainer(max_epochs=3, callbacks=[Checkpoint()])
        trainer.fit(module, loader, ckpt_path=Checkpoint.path())
    """

    def __init__(self, every_epochs: int = 1, wait: bool = True) -> None:
        if every_epochs < 1:
            raise ValueError(f"`every_epochs >= 1` must hold, but got ({every_epochs=}).")
        self._every_epochs = every_epochs
        self._wait = wait

    @staticmethod
    def path() -> str | None:
        """Return the path to pass to `fit` as `ckpt_path`; None if there is no checkpoint."""
        found = context.get_checkpoint()
        return found and str(Path(found, _FILE))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics of the epoch, and commit a checkpoint if one is due."""
        epoch = trainer.current_epoch
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        is_last = trainer.should_stop or epoch + 1 == trainer.max_epochs
        if not is_last and (epoch + 1) % self._every_epochs:
            context.report(metrics, step=epoch)
            return
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder, "checkpoint", _FILE)
            trainer.save_checkpoint(saved)  # A collective: all ranks call it.
            is_sharded = saved.is_dir()
            context.report(
                metrics,
                step=epoch,
                checkpoint=saved.parent if is_sharded or context.is_chief else None,
                sharded=is_sharded,
                wait=self._wait,
            )
