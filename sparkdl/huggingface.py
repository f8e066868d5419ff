"""Runs in the training process. A callback for the `Trainer` of transformers."""

from pathlib import Path
from typing import Any

from sparkdl import context
from sparkdl.host.optional_packages import require

require("transformers", "sparkdl.huggingface")

from transformers import TrainerCallback  # noqa: E402 After the message of its absence.

__all__ = ["Checkpoint"]


class Checkpoint(TrainerCallback):  # type: ignore[misc]
    """Reports the numbers that the Trainer logs, and commits the checkpoints that it saves.

    In a gang, all ranks use it. What each rank saves, such as its part of a model under FSDP and
    the states of its random numbers, becomes one checkpoint. `save_strategy` and `logging_strategy`
    of the Trainer say when.

    Args:
        *metrics: names of the numbers to report; by default all numbers of the log.
        wait: False to commit while the training goes on, see `context.report`. The Trainer's own
            folder of the checkpoint is moved away then, so `load_best_model_at_end` needs True.

    Example:
        >>> from types import SimpleNamespace
        >>> from sparkdl.huggingface import Checkpoint
        >>> state = SimpleNamespace(global_step=20)
        >>> Checkpoint("loss").on_log(None, state, None, logs={"loss": 0.5, "epoch": 1.0})
        step 20: loss=0.5

        With a Trainer, which goes on from the last checkpoint after a restart:

        trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[Checkpoint()])
        trainer.train(resume_from_checkpoint=context.get_checkpoint())
    """

    def __init__(self, *metrics: str, wait: bool = True) -> None:
        self._metrics = metrics
        self._wait = wait

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Choose the order of the epoch.

        Where the Trainer skips the batches before a restart, it asks no loader for the epoch.
        """
        if hasattr(train_dataloader, "set_epoch"):
            train_dataloader.set_epoch(int((state.epoch or 0) + 1e-6))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Report the numbers of a log."""
        numbers = {
            name: float(value)
            for name, value in (logs or {}).items()
            if isinstance(value, int | float) and (not self._metrics or name in self._metrics)
        }
        if numbers:
            context.report(numbers, step=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Commit the folder that the Trainer has saved."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        context.report({}, step=state.global_step, checkpoint=folder, sharded=True, wait=self._wait)
