"""Runs in the training process. The callback of HorovodRunner, for Keras 3 or tf_keras."""

import importlib
import os
import time
from collections.abc import Mapping
from typing import Any

from sparkdl.databricks.driver_log import log_to_driver
from sparkdl.distribute.strategies import uses_tf_keras

_keras: Any = importlib.import_module("tf_keras" if uses_tf_keras(os.environ) else "keras")


class LogCallback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Shows the values of each epoch on the driver. `sparkdl.keras.Report()` also keeps them.

    Args:
        per_batch_log: show the values of each batch, too.

    Example:
        >>> LogCallback().on_epoch_end(0, {"loss": 0.25})
        epoch 0 has ended: loss 0.25
    """

    def __init__(self, per_batch_log: bool = False) -> None:
        super().__init__()
        self.per_batch_log = per_batch_log

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Show that an epoch begins."""
        log_to_driver(f"epoch {epoch} begins at {time.strftime('%Y-%m-%d %H:%M:%S')}")

    def on_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Show the values of a batch, if they were asked for."""
        if self.per_batch_log:
            log_to_driver(f"batch {batch} has ended{_values(logs)}")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Show the values of an epoch."""
        log_to_driver(f"epoch {epoch} has ended{_values(logs)}")


def _values(logs: Mapping[str, Any] | None) -> str:
    values = ", ".join(f"{name} {float(value):.6g}" for name, value in (logs or {}).items())
    return f": {values}" if values else ""
