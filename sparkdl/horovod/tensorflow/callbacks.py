"""Runs in the training process. Horovod's callbacks, for Keras 3 or tf_keras.

`fit` with a `DistributedOptimizer` already does the work of `BroadcastGlobalVariablesCallback` and
`MetricAverageCallback`; using them as well is harmless.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

from sparkdl import context, distribute
from sparkdl.distribute.equal_variables import shared_variables
from sparkdl.distribute.strategies import uses_tf_keras
from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.ranks import rank, size

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

__getattr__ = absent_names(__name__, __all__)

_keras: Any = importlib.import_module("tf_keras" if uses_tf_keras(os.environ) else "keras")


class BroadcastGlobalVariablesCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Broadcasts the model and optimizer of rank `root_rank` after the first batch.

    Args:
        root_rank: the rank whose values all ranks receive.
        device: has no effect.
        local_variables: variables of which each rank keeps its own values.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.callbacks.BroadcastGlobalVariablesCallback(0).root_rank
        0
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._local = {id(variable) for variable in local_variables or ()}
        # A restarted rank receives the values in `fit`; the other ranks do not broadcast again.
        self._is_done = context.current().is_late

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast once. After a batch, a model that is built on its first call has variables."""
        if not self._is_done and size() > 1:
            variables = shared_variables(self.model)
            shared = [variable for variable in variables if id(variable) not in self._local]
            distribute.broadcast_variables(shared, self.root_rank)
        self._is_done = True

    def register_local_var(self, var: Any) -> None:
        """Let each rank keep its own values of a variable."""
        self._local.add(id(var))


class MetricAverageCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the logs at the end of an epoch over all ranks, for the callbacks after this one.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> callbacks = [hvd.callbacks.MetricAverageCallback()]
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average the logs."""
        if logs:
            logs.update(distribute.mean(logs))


class LearningRateScheduleCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Multiplies a learning rate by a factor that depends on the epoch.

    Args:
        initial_lr: the learning rate to multiply.
        multiplier: a function of the epoch; or a number, which is raised to the power of the number
            of epochs since `start_epoch`.
        start_epoch: first epoch in which the rate is set.
        end_epoch: first epoch in which the rate is no longer set; None for no end.
        staircase: set the rate at the start of each epoch; otherwise at each batch, from the
            fractional epoch.
        momentum_correction: has no effect: Keras compiles the momentum into its step.
        steps_per_epoch: number of batches per epoch; required if Keras does not know it.

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
        self.initial_lr = initial_lr
        self.multiplier = multiplier
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase if callable(multiplier) else True
        self.steps_per_epoch = steps_per_epoch
        self._epoch = 0

    def rate(self, epoch: float) -> float:
        """Return the learning rate of an epoch, which may be fractional."""
        if callable(self.multiplier):
            return self.initial_lr * self.multiplier(epoch)
        return float(self.initial_lr * self.multiplier ** (epoch - self.start_epoch))

    def on_train_begin(self, logs: Any = None) -> None:
        """Determine the number of batches per epoch.

        Raises:
            ValueError: if the number of batches per epoch is required and unknown.
        """
        self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise ValueError(
                "the number of batches per epoch is unknown, because the data has no known length. "
                "Pass steps_per_epoch= to the callback or to fit."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Store the number of the epoch; after a restart it does not start at 0."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of this batch."""
        is_early = self._epoch < self.start_epoch
        if is_early or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if not self.staircase:
            fraction = batch / (self.steps_per_epoch or 1)
            self.model.optimizer.learning_rate = self.rate(self._epoch + fraction)
        elif batch == 0:
            self.model.optimizer.learning_rate = self.rate(self._epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate as `lr`."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from the rate of one rank to that of all, at each batch.

    Goyal et al. 2017, arXiv:1706.02677, section 2.2.

    Args:
        initial_lr: the rate for all ranks together, reached at the end of the warm-up.
        warmup_epochs: number of epochs of the warm-up.
        momentum_correction, steps_per_epoch: see `LearningRateScheduleCallback`.
        verbose: 1 to print the rate at the end of the warm-up, on rank 0.

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
            # The last batch of the warm-up has the full rate.
            progress = (epoch + 1 / (self.steps_per_epoch or 1)) / warmup_epochs
            return (progress * (size() - 1) + 1) / size()

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate as `lr`; with `verbose`, print the rate at the end of the warm-up."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and rank() == 0 and epoch == (self.end_epoch or 0) - 1:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(_keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Keras's ModelCheckpoint with `save_best_only=True`.

    Args:
        **kwargs: arguments of `keras.callbacks.ModelCheckpoint`, without `save_best_only` and
            `filepath`; the file is `checkpoint.keras` in `context.checkpoint_dir`.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.callbacks.BestModelCheckpoint(monitor="loss").save_best_only
        True
    """

    def __init__(self, **kwargs: Any) -> None:
        folder = context.current().checkpoint_dir
        super().__init__(os.path.join(folder, "checkpoint.keras"), save_best_only=True, **kwargs)


class CommitStateCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Commits an elastic state at regular intervals, and at the end of each epoch.

    Args:
        state: an `hvd.elastic.State`.
        batches_per_commit: number of batches from one commit to the next.

    Example:
        >>> import sparkdl.horovod as hvd
        >>> hvd.elastic.CommitStateCallback(hvd.elastic.State(), 10).batches_per_commit
        10
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._num_batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Count batches from 0, on all ranks."""
        self._num_batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit after every `batches_per_commit` batches."""
        self._num_batches += 1
        if self._num_batches % self.batches_per_commit == 0:
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit the epoch, if an `UpdateEpochStateCallback` before this one has counted it."""
        self.state.commit()


class UpdateBatchStateCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Sets `batch` of an elastic state to the number of the current batch.

    Args:
        state: an `hvd.elastic.State` with an attribute `batch`.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Set the number of the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reset the number of the batch to 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Sets `epoch` of an elastic state to the number of completed epochs, across calls of `fit`.

    A training that starts again between two epochs then begins with the next epoch.

    Args:
        state: an `hvd.elastic.State` with an attribute `epoch`, from which each `fit` counts.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._first_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Store the epoch at which this `fit` begins."""
        self._first_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count the epoch."""
        self.state.epoch = self._first_epoch + epoch + 1
