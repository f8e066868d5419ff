"""Runs on the driver. The counterpart of `horovod.spark.common.constants`."""

from sparkdl.horovod.absent_names import ROWS_BY_SPARK, absent_names

_NAMES = (
    "ARRAY",
    "BYTES_PER_GIB",
    "CUSTOM_SPARSE",
    "DENSE_VECTOR",
    "METRIC_PRINT_FREQUENCY",
    "MIXED_SPARSE_DENSE_VECTOR",
    "NOCHANGE",
    "PETASTORM_HDFS_DRIVER",
    "SPARSE_VECTOR",
    "TOTAL_BUFFER_MEMORY_CAP_GIB",
)

__getattr__ = absent_names(__name__, instead=dict.fromkeys(_NAMES, ROWS_BY_SPARK))
