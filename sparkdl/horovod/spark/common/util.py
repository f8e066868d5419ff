"""Runs on the driver. The counterpart of `horovod.spark.common.util`."""

from sparkdl.horovod.absent_names import ROWS_BY_SPARK, absent_names

_NAMES = (
    "check_shape_compatibility",
    "check_validation",
    "clear_training_cache",
    "get_simple_meta_from_parquet",
    "get_spark_df_output_schema",
    "prepare_data",
    "to_petastorm_fn",
)

__getattr__ = absent_names(__name__, instead=dict.fromkeys(_NAMES, ROWS_BY_SPARK))
