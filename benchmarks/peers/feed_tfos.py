"""TensorFlowOnSpark's part of `feed.py`, which starts this program in an environment of its own.

The program writes JSON lines: first the versions of its packages, then, for each path that it
reads, the rows and times that a training process saw. It ends when its standard input is closed.

`feed.py` imports the Spark session and `drain` from here, so that both sides use the same code.
"""

import importlib.metadata
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.peer import own_stdout
from pyspark.sql import SparkSession

BATCH = 1024
LABEL = "label"
TIMEOUT_S = 600.0


def session(master: str) -> SparkSession:
    """Return a new Spark session that reads a file as one partition."""
    builder = SparkSession.builder.master(master).appName("feed")
    builder = builder.config("spark.ui.enabled", "false").config("spark.executor.memory", "2g")
    builder = builder.config("spark.sql.files.maxPartitionBytes", "4g")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def drain(dataset: Any) -> dict[str, float]:
    """Take every batch of `(features, label)`, in TensorFlow's own loop, as in Keras's `fit`.

    Returns:
        The number of rows, and the wall-clock times of the first and the last batch.
    """
    import tensorflow as tf

    def count(state: Any, batch: Any) -> Any:
        rows, first_s, _ = state
        now_s = tf.timestamp()
        rows += tf.shape(batch[1], out_type=tf.int64)[0]
        return rows, tf.where(first_s > 0, first_s, now_s), now_s

    none = tf.constant(0.0, tf.float64)
    rows, first_s, last_s = dataset.reduce((tf.constant(0, tf.int64), none, none), count)
    return {"rows": int(rows), "first_s": float(first_s), "last_s": float(last_s)}


def consume(result: str, node: Any) -> None:
    """Run the training function, which takes whole batches.

    Args:
        result: the path of the file for the numbers of `drain`: TensorFlowOnSpark drops the return
            value of a training function.
        node: the context of the node.
    """
    import numpy as np
    import tensorflow as tf

    feed = node.get_data_feed()

    def batches() -> Iterator[tuple[Any, Any]]:
        while not feed.should_stop():
            if rows := feed.next_batch(BATCH):
                features = np.array([row[:-1] for row in rows], np.float32)
                labels = np.array([row[-1] for row in rows], np.int32)
                yield features.reshape(len(rows), -1), labels

    signature = (tf.TensorSpec((None, None), tf.float32), tf.TensorSpec((None,), tf.int32))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    part = Path(result).with_suffix(".part")
    part.write_text(json.dumps(drain(dataset.prefetch(2))))
    part.rename(result)


def feed(spark: SparkSession, path: str) -> Any:
    """Feed the rows of a Parquet file to a training process."""
    from tensorflowonspark import TFCluster

    rows = spark.read.parquet(path).coalesce(1).rdd.map(tuple)  # A Row costs more to pickle.
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        result = Path(folder, "result.json")
        mode = TFCluster.InputMode.SPARK
        cluster = TFCluster.run(spark.sparkContext, consume, str(result), 1, 0, input_mode=mode)
        cluster.train(rows, 1)
        cluster.shutdown()
        deadline = time.monotonic() + TIMEOUT_S
        while not result.exists():  # `shutdown` does not wait for the training process.
            if time.monotonic() > deadline:
                raise TimeoutError(f"no result within {TIMEOUT_S:g} s; see the log of the executor")
            time.sleep(0.1)
        return json.loads(result.read_text())


def main() -> None:
    """Feed a file for each path of standard input; the argument is the Spark master."""
    pipe = own_stdout()
    logging.getLogger("tensorflowonspark").setLevel(
        logging.WARNING
    )  # It logs the keys of its queues.
    spark = session(sys.argv[1])
    packages = ("tensorflowonspark", "pyspark", "tensorflow-cpu", "numpy")
    print(json.dumps({name: importlib.metadata.version(name) for name in packages}), file=pipe)
    for line in sys.stdin:
        print(json.dumps(feed(spark, line.strip())), file=pipe)
    spark.stop()


if __name__ == "__main__":
    main()
