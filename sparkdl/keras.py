"""Runs in the training process. Keras callbacks that a person adds to `model.fit`, and `save`.

They are the same in one process and on every rank of a gang: all ranks add them. They belong to
Keras 3 or, where TF_USE_LEGACY_KERAS=1 is set before this import, to tf_keras.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sparkdl import context, distribute
from sparkdl.distribute.keras_fit import begin_with
from sparkdl.distribute.strategies import uses_tf_keras

__all__ = ["Checkpoint", "EarlyStopping", "LearningRateWarmup", "Report", "TensorBoard", "save"]

_LEGACY = uses_tf_keras(os.environ)
if _LEGACY:
    from tf_keras import callbacks  # type: ignore[import-untyped]
else:
    from keras import callbacks


class Report(callbacks.Callback):  # type: ignore[misc]
    """Reports numbers of each epoch, as `context.report` does.

    Args:
        *metrics: the names to report, as they appear in Keras's logs; none given reports all.

    Example:
        >>> from sparkdl.keras import Report
        >>> callback = Report("val_accuracy")
        >>> callback.on_epoch_end(0, {"loss": 0.5, "val_accuracy": 0.75})
        step 0: val_accuracy=0.75
    """

    def __init__(self, *metrics: str) -> None:
        super().__init__()
        self.metrics_to_report = metrics

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report the epoch's numbers.

        Raises:
            KeyError: Keras does not log a name that was asked for.
        """
        logs = logs or {}
        missing = [name for name in self.metrics_to_report if name not in logs]
        if missing:
            raise KeyError(
                f"Report({', '.join(map(repr, self.metrics_to_report))}): Keras logs no "
                f"{missing[0]!r}; it logs {', '.join(logs) or 'nothing'}."
            )
        context.report({n: logs[n] for n in self.metrics_to_report or logs}, step=epoch)


class Checkpoint(callbacks.Callback):  # type: ignore[misc]
    """Commits weights, optimizer and epoch, and continues from the last commit after a restart.

    A `fit(epochs=10)` that was lost in its fourth epoch starts with that epoch again. Each commit
    reports the epoch's numbers too. Use it in one `fit` of a function: a second one would
    continue after the first one's last epoch.

    Args:
        every_epochs: how many epochs lie between two commits; the last one is committed anyway.

    Raises:
        ValueError: `every_epochs` is less than one.

    Example:
        >>> from sparkdl.keras import Checkpoint
        >>> callbacks = [Checkpoint(every_epochs=2)]  # For model.fit(..., callbacks=callbacks).
    """

    def __init__(self, every_epochs: int = 1) -> None:
        super().__init__()
        if every_epochs < 1:
            raise ValueError(f"`every_epochs >= 1` must hold, but got ({every_epochs=}).")
        self.every_epochs = every_epochs

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restore the last committed checkpoint, if there is one.

        Raises:
            ValueError: the model has no weights yet, so that nothing can be restored.
            FileNotFoundError: the checkpoint was not made by this callback.
        """
        directory = context.get_checkpoint()
        if directory is None:
            return
        file = Path(directory, "epoch.json")
        if not file.exists():
            raise FileNotFoundError(
                f"sparkdl.keras.Checkpoint found no epoch.json in {directory}; it expected a "
                "checkpoint that it made itself. Leave all commits to this callback, or restore "
                "with context.get_checkpoint() yourself and leave it out."
            )
        if not self.model.built:
            raise ValueError(
                f"sparkdl.keras.Checkpoint cannot restore {self.model.name!r}: it has no weights "
                "yet. Start it with an Input layer, or call it on a batch before fit."
            )
        _restore(self.model, directory)
        done = json.loads(file.read_text())["epochs_done"]
        begin_with(self.model, done)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Commit, if this epoch's turn has come."""
        last = epoch + 1 == self.params["epochs"] or self.model.stop_training
        if not last and (epoch + 1) % self.every_epochs:
            return
        # All ranks save: some variables are read together. The chief's is what is kept.
        with tempfile.TemporaryDirectory() as directory:
            _store(self.model, directory)
            Path(directory, "epoch.json").write_text(json.dumps({"epochs_done": epoch + 1}))
            numbers = {name: float(value) for name, value in (logs or {}).items()}
            context.report(numbers, step=epoch, checkpoint=directory)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Let a later `fit` without this callback begin with its own first epoch."""
        begin_with(self.model, None)


def _store(model: Any, directory: str) -> None:
    if _LEGACY:  # Its `save_weights` leaves the optimizer out.
        import tensorflow as tf

        tf.train.Checkpoint(model=model).write(os.path.join(directory, "model"))
    else:
        model.save_weights(os.path.join(directory, "model.weights.h5"))


def _restore(model: Any, directory: str) -> None:
    if not getattr(model.optimizer, "built", True):
        model.optimizer.build(model.trainable_variables)
    if _LEGACY:
        import tensorflow as tf

        tf.train.Checkpoint(model=model).read(os.path.join(directory, "model"))
    else:
        model.load_weights(os.path.join(directory, "model.weights.h5"))


class TensorBoard(callbacks.TensorBoard):  # type: ignore[misc]
    """Keras's TensorBoard callback, writing to `tensorboard.logdir()`.

    In a gang the chief's events are kept; the other ranks' are thrown away.

    Args:
        **kwargs: those of `keras.callbacks.TensorBoard`, without `log_dir`.

    Example:
        >>> from sparkdl import tensorboard
        >>> from sparkdl.keras import TensorBoard
        >>> TensorBoard(update_freq=100).log_dir == tensorboard.logdir()
        True
    """

    def __init__(self, **kwargs: Any) -> None:
        me = context.current()
        self._thrown_away = None if me.is_chief else tempfile.mkdtemp()
        super().__init__(log_dir=self._thrown_away or me.logdir, **kwargs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Close the files."""
        super().on_train_end(logs)
        if self._thrown_away:
            shutil.rmtree(self._thrown_away, ignore_errors=True)


class EarlyStopping(callbacks.EarlyStopping):  # type: ignore[misc]
    """Keras's EarlyStopping that decides once for all ranks.

    The monitored number is averaged over all ranks first. A rank that stopped alone would leave
    the others waiting for it.

    Args: those of `keras.callbacks.EarlyStopping`.

    Example:
        >>> from sparkdl.keras import EarlyStopping
        >>> EarlyStopping("val_loss", patience=3, restore_best_weights=True).patience
        3
    """

    def get_monitor_value(self, logs: dict[str, Any] | None) -> Any:
        """The average over all ranks of the monitored number; None where Keras logs none."""
        value = super().get_monitor_value(logs)
        # Without a strategy, as with JAX, Keras's numbers are those of all ranks already.
        strategy = getattr(self.model, "distribute_strategy", None)
        return value if value is None or strategy is None else distribute.mean(value)


class LearningRateWarmup(callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate from one worker's to the scaled one, by the same amount each batch.

    Goyal et al. 2017 (arXiv:1706.02677), section 2.2: large batches need small steps at first.
    After the warm-up it leaves the rate to others.

    Args:
        rate: the learning rate that is right for one worker's batch.
        epochs: how many epochs it takes to reach `distribute.scale_learning_rate(rate)`.
        num_workers: by default the size of this run.
        steps_per_epoch: needed only where Keras does not know it before the first epoch.

    Example:
        >>> from sparkdl.keras import LearningRateWarmup
        >>> LearningRateWarmup(0.1, epochs=5, num_workers=8).scaled
        0.8
    """

    def __init__(
        self,
        rate: float,
        epochs: int = 5,
        num_workers: int | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.rate, self.epochs, self.steps_per_epoch = rate, epochs, steps_per_epoch
        self.scaled = distribute.scale_learning_rate(rate, num_workers)
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find out how long an epoch is.

        Raises:
            ValueError: nobody knows.
        """
        self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
        if not self.steps_per_epoch:
            raise ValueError(
                "LearningRateWarmup does not know how many steps an epoch has, since the data has "
                "no known length. Give steps_per_epoch= to it, or to fit."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the epoch, which is not the first one after a restart."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set this batch's rate."""
        steps = self.steps_per_epoch or 1
        step, last = self._epoch * steps + batch, self.epochs * steps
        if step <= last:
            rate = distribute.warmed_up(step, last, self.rate, self.scaled)
            self.model.optimizer.learning_rate = rate


def save(model: Any, path: str | os.PathLike[str]) -> str:
    """Save a model as one file. All ranks call it, and the chief's file is kept.

    The file appears as a whole when the chief's call returns; it loads in plain Keras.

    Args:
        path: a name that ends in `.keras` or `.h5`. Folders above it are made.

    Returns:
        The path, as text: what a training function may return to keep the file.

    Raises:
        ValueError: the name ends otherwise.

    Example:
        >>> import keras
        >>> from sparkdl.keras import save
        >>> model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        >>> keras.saving.load_model(save(model, "models/first.keras")).count_params()
        2
    """
    path = Path(path)
    if path.suffix not in (".keras", ".h5"):
        raise ValueError(f"save got {str(path)!r}; expected a path that ends in .keras or .h5.")
    if not context.current().is_chief:
        with tempfile.TemporaryDirectory() as directory:
            model.save(os.path.join(directory, path.name))
        return str(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        model.save(str(beside))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return str(path)
