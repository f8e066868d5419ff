"""Where it runs: P. Keras callbacks that a person adds to `model.fit`."""

from typing import Any

import keras

from sparkdl import context

__all__ = ["Report"]


class Report(keras.callbacks.Callback):  # type: ignore[misc]
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
