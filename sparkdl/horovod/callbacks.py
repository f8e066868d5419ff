"""Runs in the training process.

Horovod's callbacks, for Keras 3, or for tf_keras where a program uses that.

Two of them do what `fit` with a `DistributedOptimizer` does by itself; they do no harm beside it.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

from sparkdl import context, distribute
from sparkdl.distribute.keras_fit import state
from sparkdl.distribute.strategies import uses_tf_keras
from sparkdl.horovod.operations import rank, size

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CommitStateCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]

_keras: Any = importlib.import_module("tf_keras" if uses_tf_keras(os.environ) else "keras")


class BroadcastGlobalVariablesCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks the model of rank `root_rank`, and its optimizer, after the first batch.

    Args:
        root_rank: whose values they are.
        device, local_variables: have no effect.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.callbacks.BroadcastGlobalVariablesCallback(0).root_rank
        0
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        # One that comes late is given them by `fit`, and the others have called this long ago.
        self.root_rank, self._is_done = root_rank, context.current().is_late

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast, once: now a model that builds itself has variables."""
        if not self._is_done and size() > 1:
            distribute.broadcast_variables(state(self.model), self.root_rank)
        self._is_done = True


class MetricAverageCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Averages what is logged at the end of an epoch over all ranks, for the callbacks behind it.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> callbacks = [hvd.callbacks.MetricAverageCallback()]
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average."""
        if logs:
            logs.update(distribute.mean(logs))


class LearningRateScheduleCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Multiplies a learning rate, by epoch or part of it.

    Args:
        initial_lr: what is multiplied.
        multiplier: a function of the epoch; or a number, which is taken to the power of the epochs
            since `start_epoch`.
        start_epoch, end_epoch: where it is in force, `start_epoch <= epoch < end_epoch`.
        staircase: at the begin of an epoch only; else at each batch, of a fractional epoch.
        momentum_correction: has no effect: Keras compiles the momentum into its step.
        steps_per_epoch: needed where Keras does not know it.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> halves = hvd.callbacks.LearningRateScheduleCallback(0.4, 0.5, start_epoch=2)
        >>> halves.rate(3)
        0.2
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.multiplier = multiplier
        self.staircase = staircase if callable(multiplier) else True
        self.steps_per_epoch, self._epoch = steps_per_epoch, 0

    def rate(self, epoch: float) -> float:
        """The learning rate of an epoch."""
        if callable(self.multiplier):
            return self.initial_lr * self.multiplier(epoch)
        return float(self.initial_lr * self.multiplier ** (epoch - self.start_epoch))

    def on_train_begin(self, logs: Any = None) -> None:
        """Find out how long an epoch is.

        Raises:
            ValueError: nobody knows.
        """
        self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise ValueError(
                "the length of an epoch is not known, since the data has no known length. Give "
                "steps_per_epoch= to the callback, or to fit."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch, which is not the first one after a restart."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set this batch's rate."""
        is_early = self._epoch < self.start_epoch
        if is_early or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if not self.staircase:
            part = batch / (self.steps_per_epoch or 1)
            self.model.optimizer.learning_rate = self.rate(self._epoch + part)
        elif batch == 0:
            self.model.optimizer.learning_rate = self.rate(self._epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate as `lr`."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the rate from one rank's to that of all, a little at each batch.

    Goyal et al. 2017, arXiv:1706.02677, section 2.2.

    Args:
        initial_lr: the rate for all ranks together, which it ends with.
        warmup_epochs: how long it takes.
        momentum_correction, steps_per_epoch: see `LearningRateScheduleCallback`.
        verbose: print the rate at the end, on rank 0.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=5).end_epoch
        5
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The batch after the last of the warm-up has the full rate.
            done = (epoch + 1 / (self.steps_per_epoch or 1)) / warmup_epochs
            return (done * (size() - 1) + 1) / size()

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate as `lr`; say that the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and rank() == 0 and epoch == (self.end_epoch or 0) - 1:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(_keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Keras's ModelCheckpoint that keeps the best model only.

    Args: those of `keras.callbacks.ModelCheckpoint` without `filepath`, which is `checkpoint.keras`
        in the folder of this trial, and `save_best_only`.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.callbacks.BestModelCheckpoint(monitor="loss").save_best_only
        True
    """

    def __init__(self, **kwargs: Any) -> None:
        from sparkdl import context

        folder = context.current().checkpoint_dir
        super().__init__(os.path.join(folder, "checkpoint.keras"), save_best_only=True, **kwargs)


class CommitStateCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Commits an elastic state.

    Args:
        state: see `hvd.elastic.State`.
        batches_per_commit: how many batches lie between two commits.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.elastic.CommitStateCallback(hvd.elastic.State(), 10).batches_per_commit
        10
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit, self._batches = state, batches_per_commit, 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Count from 0 on all ranks."""
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, if this batch's turn has come."""
        self._batches += 1
        if self._batches % self.batches_per_commit == 0:
            self.state.commit()


class UpdateBatchStateCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `batch` of an elastic state at the number of the batch.

    Args:
        state: with an attribute `batch`.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Set it."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begin again."""
        self.state.batch = 0


class UpdateEpochStateCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `epoch` of an elastic state at the number of the epoch, over several `fit`.

    Args:
        state: with an attribute `epoch`; each `fit` counts from it.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state, self._first = state, 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Note where this `fit` begins."""
        self._first = self.state.epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set it."""
        self.state.epoch = self._first + epoch
