"""TensorFlowOnSpark for `start.py`, which starts it in an environment of its own.

The program writes JSON lines: first the versions of its packages, then the seconds of a call for
each line that it reads.
"""

import importlib.metadata
import json
import logging
import sys
from collections.abc import Callable

from lib.peer import own_stdout
from lib.start import RANKS, measure, session
from pyspark.sql import SparkSession
from tensorflowonspark import TFCluster


def start(spark: SparkSession, function: Callable[[str], None], folder: str) -> None:
    """Run a function in the nodes of a new cluster, and shut the cluster down."""
    mode = TFCluster.InputMode.TENSORFLOW
    cluster = TFCluster.run(
        spark.sparkContext, lambda args, _: function(args), folder, RANKS, 0, input_mode=mode
    )
    cluster.shutdown()


def main() -> None:
    """Measure a call for each line of standard input."""
    pipe = own_stdout()
    # It logs the keys of its queues.
    logging.getLogger("tensorflowonspark").setLevel(logging.WARNING)
    spark = session()
    packages = ("pyspark", "tensorflowonspark", "tensorflow-cpu")
    print(json.dumps({name: importlib.metadata.version(name) for name in packages}), file=pipe)
    for _ in sys.stdin:
        print(json.dumps(measure(lambda *call: start(spark, *call))), file=pipe)
    spark.stop()


if __name__ == "__main__":
    main()
