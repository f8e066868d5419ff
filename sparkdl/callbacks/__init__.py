"""Callbacks of a run (runs on the driver): the base class, a webhook, and a mirror in MLflow."""

from sparkdl.callbacks.callback import Callback
from sparkdl.callbacks.mlflow import MLflow
from sparkdl.callbacks.webhook import Webhook

__all__ = ["Callback", "MLflow", "Webhook"]
