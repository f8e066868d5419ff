"""Data for training functions, from Spark or from files. Runs in the training process.

The functions are imported when they are first used: a Spark task needs none of them, and importing
the readers takes half a second.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.data.batch_map import Map
    from sparkdl.data.dataframe.dataset import dataset
    from sparkdl.data.local_rows import local
    from sparkdl.data.mixing import mix
    from sparkdl.data.readers.delimited import csv
    from sparkdl.data.readers.delta import delta
    from sparkdl.data.readers.images import images
    from sparkdl.data.readers.parquet import parquet
    from sparkdl.data.readers.petastorm.reader import petastorm
    from sparkdl.data.readers.tfrecord import tfrecord
    from sparkdl.data.rows import Rows
    from sparkdl.data.tfexample.dataframe_reader import read_tfrecord
    from sparkdl.data.tfexample.dataframe_writer import write_tfrecord

__all__ = [
    "Map",
    "Rows",
    "csv",
    "dataset",
    "delta",
    "images",
    "local",
    "mix",
    "parquet",
    "petastorm",
    "read_tfrecord",
    "tfrecord",
    "write_tfrecord",
]

_MODULES = {
    "Map": "sparkdl.data.batch_map",
    "Rows": "sparkdl.data.rows",
    "csv": "sparkdl.data.readers.delimited",
    "dataset": "sparkdl.data.dataframe.dataset",
    "delta": "sparkdl.data.readers.delta",
    "images": "sparkdl.data.readers.images",
    "local": "sparkdl.data.local_rows",
    "mix": "sparkdl.data.mixing",
    "parquet": "sparkdl.data.readers.parquet",
    "petastorm": "sparkdl.data.readers.petastorm.reader",
    "read_tfrecord": "sparkdl.data.tfexample.dataframe_reader",
    "tfrecord": "sparkdl.data.readers.tfrecord",
    "write_tfrecord": "sparkdl.data.tfexample.dataframe_writer",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(
        f"module 'sparkdl.data' has no attribute {name!r}. Expected one of {', '.join(__all__)}."
    )
