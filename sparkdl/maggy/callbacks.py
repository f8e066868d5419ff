"""Runs in the training process. maggy's Keras callbacks, which report a metric.

They are callbacks of Keras 3 or, if TF_USE_LEGACY_KERAS=1 is set, of tf_keras.
"""

from typing import Any

from sparkdl.keras import callbacks  # type: ignore[attr-defined]

__all__ = ["KerasBatchEnd", "KerasEpochEnd"]

# Keras 2.2 named the first of each pair by the second.
_RENAMED = {"accuracy": "acc", "val_accuracy": "val_acc"}
_NAMES = {**_RENAMED, **{old: new for new, old in _RENAMED.items()}}


class KerasBatchEnd(callbacks.Callback):  # type: ignore[misc]
    """Reports a metric after each batch, with the number of the report as its step.

    Args:
        reporter: the reporter that the training function was given.
        metric: the name of the metric in Keras's logs; `acc` and `accuracy` are the same.

    Raises:
        KeyError: if Keras does not log the metric.
    """

    def __init__(self, reporter: Any, metric: str = "loss") -> None:
        super().__init__()
        self.metric_name = metric
        self.reporter = reporter

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Report the metric."""
        self.reporter.broadcast(_value(self, logs or {}))


class KerasEpochEnd(callbacks.Callback):  # type: ignore[misc]
    """Reports a metric after each epoch, with the number of the epoch as its step.

    Args:
        reporter: the reporter that the training function was given.
        metric: the name of the metric in Keras's logs; `val_acc` and `val_accuracy` are the same.

    Raises:
        KeyError: if Keras does not log the metric.
    """

    def __init__(self, reporter: Any, metric: str = "val_loss") -> None:
        super().__init__()
        self.metric_name = metric
        self.reporter = reporter

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report the metric."""
        self.reporter.broadcast(_value(self, logs or {}), epoch)


def _value(callback: Any, logs: dict[str, Any]) -> float:
    for name in (callback.metric_name, _NAMES.get(callback.metric_name)):
        if name in logs:
            return float(logs[name])
    raise KeyError(
        f"{type(callback).__name__}(metric={callback.metric_name!r}): Keras does not log this "
        f"metric; it logs {', '.join(logs) or 'nothing'}. Name one of these, or add the metric to "
        "model.compile(metrics=...)."
    )
