"""Runs in the training process. Horovod's API over the ring, for programs that were written for it.

`import sparkdl.horovod.tensorflow as hvd`, `sparkdl.horovod.keras`,
`sparkdl.horovod.tensorflow.keras` and `sparkdl.horovod.torch` take the place of Horovod's modules;
`import sparkdl.horovod as hvd` is the first of them. On the driver, `sparkdl.horovod.run` and
`sparkdl.horovod.spark.run` start a function in several ranks.
"""

import functools
import importlib
import importlib.machinery
from typing import Any

from sparkdl.host.missing_names import missing_name


def __getattr__(name: str) -> Any:
    # Imported on first use: some import TensorFlow or PyTorch, others what only the driver needs.
    if _is_module(name):
        return importlib.import_module(f"{__name__}.{name}")
    if name == "log_to_driver":  # Of Databricks' HorovodRunner.
        return getattr(importlib.import_module("sparkdl.databricks.driver_log"), name)
    module = "launch" if name == "run" else "tensorflow"
    try:
        return getattr(importlib.import_module(f"sparkdl.horovod.{module}"), name)
    except AttributeError as exc:
        raise missing_name(str(exc)) from None


@functools.cache
def _is_module(name: str) -> bool:
    return importlib.machinery.PathFinder.find_spec(f"{__name__}.{name}", __path__) is not None
