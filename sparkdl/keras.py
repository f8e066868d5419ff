"""Runs in the training process. Keras callbacks for `model.fit`, and the function `save`.

They work alike in one process and in a gang, where all ranks use them. They are callbacks of
Keras 3 or, if TF_USE_LEGACY_KERAS=1 is set before this import, of tf_keras.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sparkdl import context, distribute
from sparkdl.data.fit_epochs import FitEpochs, progress_in, write_progress
from sparkdl.distribute.callback_lists import add_last_callbacks
from sparkdl.distribute.callback_states import FitCallbacks
from sparkdl.distribute.keras_fit import set_initial_epoch
from sparkdl.distribute.keras_logs import as_numbers
from sparkdl.distribute.model_states import read_model, write_model
from sparkdl.distribute.sharded_fit import has_shards
from sparkdl.distribute.strategies import uses_tf_keras
from sparkdl.errors import ConfigError
from sparkdl.host.optional_packages import require

__all__ = ["Checkpoint", "EarlyStopping", "LearningRateWarmup", "Report", "TensorBoard", "save"]

# The attribute of a model with the steps of an epoch before the place where `fit` goes on.
_STEPS_MADE = "_sparkdl_steps_made"

_LEGACY = uses_tf_keras(os.environ)
if _LEGACY:
    from tf_keras import callbacks  # type: ignore[import-untyped]
else:
    require("keras", "sparkdl.keras")
    from keras import callbacks


class Report(callbacks.Callback):  # type: ignore[misc]
    """Reports the metrics of each epoch, as `context.report` does.

    A metric with several values, such as `keras.metrics.F1Score` without `average=`, is left out
    with a warning.

    Args:
        *metrics: names of the metrics to report, as in Keras's logs; by default all.

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
        """Report the metrics of the epoch.

        Raises:
            KeyError: if Keras does not log a requested metric.
        """
        logs = logs or {}
        missing = [name for name in self.metrics_to_report if name not in logs]
        if missing:
            raise KeyError(
                f"Report({', '.join(map(repr, self.metrics_to_report))}): Keras does not log "
                f"{missing[0]!r}; it logs {', '.join(logs) or 'nothing'}."
            )
        names = self.metrics_to_report or logs
        context.report(as_numbers({name: logs[name] for name in names}), step=epoch)


class Checkpoint(callbacks.Callback):  # type: ignore[misc]
    """Commits weights, optimizer and epoch, and continues from the last commit after a restart.

    After a restart, a `fit(epochs=10)` that was lost in its fourth epoch starts with the fourth
    epoch again. Each commit at the end of an epoch also reports its metrics. Use the callback in
    only one `fit` of a training function: a second `fit` would continue after the last epoch of the
    first.

    A commit also keeps the state of the other callbacks, when all have seen the epoch: what Keras's
    own ones have counted, their best values and weights, and the History. A callback of your own
    keeps what its `get_state()` returns: numbers, text, None, lists, dicts with text as keys, NumPy
    arrays. A restart calls `set_state(state)` after all `on_train_begin`, and logs which callbacks
    begin anew. A `fit` that a callback has ended, such as EarlyStopping, trains no further after a
    restart, unless with other `epochs`.

    With `data=`, the rows that `fit` reads, a commit also has the place in the epoch. A restart
    then reads every row of the epoch that no step has used, once, also on another number of ranks;
    and each epoch has its own order of rows, as without the restart. `every_steps` commits in the
    middle of epochs, too. The metrics that Keras logs for an epoch in which it went on are those of
    the rest of the epoch.

    The model must have weights before `fit`: start a Sequential with an Input layer, or call the
    model on a batch.

    Where Spark decommissions the executor (`context.should_stop`), the callback also commits at the
    end of the next batch, but for `distribute.optimizer(shard=True)`. Without `data=`, a restart
    then begins the same epoch again, with the weights that it had.

    Args:
        every_epochs: number of epochs from one commit to the next; the last epoch is always
            committed.
        every_steps: number of steps from one commit to the next within an epoch; None commits at
            the end of epochs only. A commit copies all weights, which takes as long as saving them.
        data: the result of a reader, such as `data.parquet` or `data.dataset`, that is passed to
            `fit`. A dataset that is derived from it with `map` may be passed instead, if it is
            derived after the callback was created. `fit` must take whole epochs, without
            `steps_per_epoch`.

    Raises:
        ValueError: if `every_epochs` or `every_steps` is less than one.
        ConfigError: if `every_steps` has no `data`, if `data` has no state, see
            `sparkdl.data.Rows.load_state_dict`, or if the model is one of tf_keras.

    Example:
        >>> from sparkdl.keras import Checkpoint
        >>> callbacks = [Checkpoint(every_epochs=2)]  # For model.fit(..., callbacks=callbacks).
    """

    def __init__(
        self, every_epochs: int = 1, every_steps: int | None = None, data: Any = None
    ) -> None:
        super().__init__()
        if every_epochs < 1:
            raise ValueError(f"`every_epochs >= 1` must hold, but got ({every_epochs=}).")
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"`every_steps >= 1` must hold, but got ({every_steps=}).")
        if every_steps is not None and data is None:
            raise ConfigError(
                f"Checkpoint(every_steps={every_steps}) was given no data; expected the rows that "
                "fit reads, from the middle of which a restart goes on: "
                f"Checkpoint(every_steps={every_steps}, data=rows)."
            )
        self.every_epochs = every_epochs
        self.every_steps = every_steps
        if data is not None and _LEGACY:
            raise ConfigError(
                "Checkpoint(data=...) needs Keras 3: a fit of tf_keras ends with its first short "
                "epoch. Leave out data= and every_steps=, or use Keras 3."
            )
        self._rows = None if data is None else FitEpochs(data)
        self._epoch = 0
        self._committed_steps = 0
        self._has_left = False
        self._restored: tuple[str, dict[str, Any]] | None = None
        self._others = FitCallbacks([])

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restore the last committed checkpoint, if any.

        Raises:
            ValueError: if the model has no weights yet, into which a restart would restore.
            FileNotFoundError: if the checkpoint was not created by this callback.
            ConfigError: if `fit` has other steps per epoch than `data`.
        """
        # Also without a checkpoint: the first start must not hide what would fail after a restart.
        if not self.model.built:
            raise ValueError(
                f"sparkdl.keras.Checkpoint could not restore {self.model.name!r} after a restart: "
                "it has no weights before its first batch. Start it with an Input layer, or call "
                "it on a batch before fit."
            )
        if self._rows:
            self._rows.check_steps(self.params.get("steps"))
        directory = context.get_checkpoint()
        self._restored = (directory, progress_in(directory)) if directory else None
        self._go_on()

    def _go_on(self) -> None:
        if not self._restored:
            return
        directory, done = self._restored
        read_model(self.model, directory, _LEGACY)
        epoch = self._rows.go_on(done) if self._rows else done["epochs_done"]
        # A callback has ended this `fit`, which goes on only if it is given more epochs.
        has_stopped = done.get("stopped_of") == self.params["epochs"]
        self._first_epoch = self.params["epochs"] if has_stopped else epoch
        set_initial_epoch(self.model, self._first_epoch)

    def _restore_others(self, logs: dict[str, Any] | None = None) -> None:
        self._others.begin()
        if self._restored:
            me = context.current()
            if self.model._initial_epoch != self._first_epoch and not me.is_late:
                self._go_on()  # A BackupAndRestore, say, has restored another moment.
            self._others.restore(*self._restored, tells=me.is_chief)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Store the number of the epoch, and let its rows be read."""
        self._epoch = epoch
        self._committed_steps = 0
        if self._rows:
            setattr(self.model, _STEPS_MADE, self._rows.begin(epoch))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep Keras from calling callbacks in another thread, as it does without this method."""

    def _commit_within_epoch(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        steps, reporter = batch + 1, context.this_reporter()
        if self._rows:  # The last of several steps_per_execution may be fewer.
            steps = min(steps, self._rows.num_steps)
        is_leaving = not (self._has_left or has_shards(self.model)) and reporter.is_leaving()
        is_due = self.every_steps and steps - self._committed_steps >= self.every_steps
        is_last = self._rows is not None and steps >= self._rows.num_steps
        if not is_leaving and (not is_due or is_last):
            return
        self._has_left |= is_leaving
        # A rank that leaves commits at a step of its own; all others are due at the same steps.
        self._committed_steps = steps if is_due else self._committed_steps
        with tempfile.TemporaryDirectory() as directory:
            self._save(directory, {"epochs_done": self._epoch}, steps)
            if context.current().is_chief:
                committer = context.this_committer()
                committer.commit(directory, reporter.step, reporter.metrics)

    def _commit_epoch(self, epoch: int, logs: dict[str, Any] | None) -> None:
        is_last = epoch + 1 == self.params["epochs"] or self.model.stop_training
        if not (is_last or self._has_left) and (epoch + 1) % self.every_epochs:
            return
        # All ranks save, because reading some variables is a collective; the chief's checkpoint is
        # committed.
        with tempfile.TemporaryDirectory() as directory:
            stopped = {"stopped_of": self.params["epochs"]} if self.model.stop_training else {}
            self._save(directory, {"epochs_done": epoch + 1, **stopped})
            context.report(as_numbers(logs or {}), step=epoch, checkpoint=directory)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Reset the beginning for a later `fit` without this callback."""
        set_initial_epoch(self.model, None)
        setattr(self.model, _STEPS_MADE, 0)

    def _save(self, directory: str, progress: dict[str, Any], steps: int = 0) -> None:
        write_model(self.model, directory, _LEGACY)
        if self._rows:
            progress["data"] = self._rows.state(progress["epochs_done"], steps)
        write_progress(directory, {**progress, **self._others.save(directory)})


def _last_callback(checkpoint: Any, of_fit: list[Any]) -> Any:
    if not isinstance(checkpoint, Checkpoint):
        return None
    checkpoint._others = FitCallbacks(of_fit)
    return callbacks.LambdaCallback(
        on_train_begin=checkpoint._restore_others,
        on_train_batch_end=checkpoint._commit_within_epoch,
        on_epoch_end=checkpoint._commit_epoch,
    )


add_last_callbacks(callbacks.CallbackList, _last_callback)


class TensorBoard(callbacks.TensorBoard):  # type: ignore[misc]
    """Keras's TensorBoard callback, writing to `tensorboard.logdir()`.

    In a gang, only the events of the chief are kept; those of the other ranks are deleted.

    Args:
        **kwargs: arguments of `keras.callbacks.TensorBoard`, without `log_dir`.

    Example:
        >>> from sparkdl import tensorboard
        >>> from sparkdl.keras import TensorBoard
        >>> TensorBoard(update_freq=100).log_dir == tensorboard.logdir()
        True
    """

    def __init__(self, **kwargs: Any) -> None:
        me = context.current()
        self._temporary_folder = None if me.is_chief else tempfile.mkdtemp()
        super().__init__(log_dir=self._temporary_folder or me.logdir, **kwargs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Close the event files, and delete the temporary folder of a rank that is not chief."""
        super().on_train_end(logs)
        if self._temporary_folder:
            shutil.rmtree(self._temporary_folder, ignore_errors=True)


class EarlyStopping(callbacks.EarlyStopping):  # type: ignore[misc]
    """Keras's EarlyStopping with the same decision on all ranks.

    The monitored metric is averaged over all ranks first. If a rank stopped alone, the other ranks
    would wait for it. The arguments are those of `keras.callbacks.EarlyStopping`.

    Example:
        >>> from sparkdl.keras import EarlyStopping
        >>> EarlyStopping("val_loss", patience=3, restore_best_weights=True).patience
        3
    """

    def get_monitor_value(self, logs: dict[str, Any] | None) -> Any:
        """Return the average over all ranks of the monitored metric; None if it is not logged."""
        value = super().get_monitor_value(logs)
        # A model without a strategy, as with JAX, logs metrics of all ranks already.
        strategy = getattr(self.model, "distribute_strategy", None)
        return value if value is None or strategy is None else distribute.mean(value)


class LearningRateWarmup(callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate from the rate of one worker to the scaled rate, linearly.

    Goyal et al. 2017 (arXiv:1706.02677), section 2.2: large batches need small steps at first. The
    rate is set at each batch of the warm-up, and not changed afterwards.

    Args:
        rate: the learning rate tuned for one worker's batch.
        epochs: number of epochs until the rate is `distribute.scale_learning_rate(rate)`.
        num_workers: number of workers; by default the number of ranks of this run.
        steps_per_epoch: number of batches per epoch; required only if Keras does not know it before
            the first epoch.

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
        self.rate = rate
        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch
        self.scaled = distribute.scale_learning_rate(rate, num_workers)
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Determine the number of steps per epoch.

        Raises:
            ValueError: if the number of steps per epoch is unknown.
        """
        self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
        if not self.steps_per_epoch:
            raise ValueError(
                "LearningRateWarmup does not know the number of steps per epoch, because the data "
                "has no known length. Pass steps_per_epoch= to LearningRateWarmup or to fit."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Store the number of the epoch; after a restart it does not start at 0."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the rate of this batch."""
        steps_per_epoch = self.steps_per_epoch or 1
        in_epoch = min(getattr(self.model, _STEPS_MADE, 0) + batch, steps_per_epoch)
        step = self._epoch * steps_per_epoch + in_epoch
        num_steps = self.epochs * steps_per_epoch
        if step <= num_steps:
            rate = distribute.warmed_up(step, num_steps, self.rate, self.scaled)
            self.model.optimizer.learning_rate = rate


def save(model: Any, path: str | os.PathLike[str]) -> str:
    """Save a model as one file. All ranks must call `save`; the chief's file is kept.

    The complete file appears when the call of the chief returns. It loads in plain Keras.

    Args:
        model: a Keras model.
        path: path of the file, ending in `.keras` or `.h5`. Missing parent folders are created.

    Returns:
        The path, as text. A training function may return it to keep the file.

    Raises:
        ValueError: if the path has another ending.

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
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        model.save(str(temporary))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return str(path)
