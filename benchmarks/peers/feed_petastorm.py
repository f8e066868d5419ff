"""petastorm's part of `feed.py`, which starts this program in an environment of its own.

The program writes JSON lines: first the versions of its packages, then, for each path that it
reads, the rows and times that the loop over the batches saw. The converter writes the rows to
Parquet first, so that the time begins before it.
"""

import importlib.metadata
import json
import sys
import tempfile
import time
from typing import Any

from lib.peer import own_stdout
from petastorm.spark import SparkDatasetConverter, make_spark_converter
from pyspark.sql import SparkSession

from peers.feed_tfos import BATCH, LABEL, drain, session


def features_and_label(row: Any) -> tuple[Any, Any]:
    """Return a batch as feed.py's training function takes it: one tensor of features, labels."""
    import tensorflow as tf

    columns = [getattr(row, name) for name in row._fields if name != LABEL]
    return columns[0] if len(columns) == 1 else tf.stack(columns, 1), getattr(row, LABEL)


def feed(spark: SparkSession, path: str) -> Any:
    """Convert the rows of a Parquet file, and read the copy."""
    first_s = time.time()
    converter = make_spark_converter(spark.read.parquet(path).coalesce(1))
    # The thread pool of 0.13.1, the default, can lose rows.
    reading = converter.make_tf_dataset(batch_size=BATCH, num_epochs=1, reader_pool_type="dummy")
    with reading as dataset:
        measured = drain(dataset.map(features_and_label).prefetch(2))
    converter.delete()
    return {**measured, "first_s": first_s}


def main() -> None:
    """Feed a file for each path of standard input; the argument is the Spark master."""
    pipe = own_stdout()
    spark = session(sys.argv[1])
    packages = ("petastorm", "pyspark", "pyarrow", "tensorflow-cpu", "numpy")
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{folder}")
        print(json.dumps({name: importlib.metadata.version(name) for name in packages}), file=pipe)
        for line in sys.stdin:
            print(json.dumps(feed(spark, line.strip())), file=pipe)
    spark.stop()


if __name__ == "__main__":
    main()
