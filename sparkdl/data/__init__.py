"""Data for training functions, from Spark or from files. Runs in the training process.

The functions that run on the driver and need pyspark are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sparkdl.data.dataframe.dataset import dataset
from sparkdl.data.readers.delimited import csv
from sparkdl.data.readers.images import images
from sparkdl.data.readers.parquet import parquet
from sparkdl.data.readers.petastorm.reader import petastorm
from sparkdl.data.readers.tfrecord import tfrecord

if TYPE_CHECKING:
    from sparkdl.data.local_rows import local
    from sparkdl.data.tfexample.dataframe_io import read_tfrecord, write_tfrecord

__all__ = [
    "csv",
    "dataset",
    "images",
    "local",
    "parquet",
    "petastorm",
    "read_tfrecord",
    "tfrecord",
    "write_tfrecord",
]

_ON_DRIVER = {
    "local": "sparkdl.data.local_rows",
    "read_tfrecord": "sparkdl.data.tfexample.dataframe_io",
    "write_tfrecord": "sparkdl.data.tfexample.dataframe_io",
}


def __getattr__(name: str) -> Any:
    if name in _ON_DRIVER:
        return getattr(importlib.import_module(_ON_DRIVER[name]), name)
    raise AttributeError(
        f"module 'sparkdl.data' has no attribute {name!r}. Expected one of {', '.join(__all__)}."
    )
