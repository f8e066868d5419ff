"""Data for training functions, from Spark or from files. Runs in the training process.

`local`, `read_tfrecord` and `write_tfrecord` run on the driver.

The functions are imported when they are first used: a Spark task needs none of them, and importing
the readers takes half a second.
"""

from typing import TYPE_CHECKING

from sparkdl.host.lazy_names import lazy_names

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

__getattr__ = lazy_names(
    "sparkdl.data",
    {
        "sparkdl.data.batch_map": "Map",
        "sparkdl.data.rows": "Rows",
        "sparkdl.data.readers.delimited": "csv",
        "sparkdl.data.dataframe.dataset": "dataset",
        "sparkdl.data.readers.delta": "delta",
        "sparkdl.data.readers.images": "images",
        "sparkdl.data.local_rows": "local",
        "sparkdl.data.mixing": "mix",
        "sparkdl.data.readers.parquet": "parquet",
        "sparkdl.data.readers.petastorm.reader": "petastorm",
        "sparkdl.data.tfexample.dataframe_reader": "read_tfrecord",
        "sparkdl.data.readers.tfrecord": "tfrecord",
        "sparkdl.data.tfexample.dataframe_writer": "write_tfrecord",
    },
    __all__,
)
