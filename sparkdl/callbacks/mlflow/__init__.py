"""A mirror of runs in MLflow (runs on the driver). It needs the extra `mlflow`."""

from sparkdl.callbacks.mlflow.tracker import MLflow

__all__ = ["MLflow"]
