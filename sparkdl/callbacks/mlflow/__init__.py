"""A mirror of runs in MLflow (runs on the driver); needs `pip install 'sparkdl[mlflow]'`."""

from sparkdl.callbacks.mlflow.tracker import MLflow

__all__ = ["MLflow"]
