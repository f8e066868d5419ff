"""A client of Spark Connect that runs functions of programs, see `tests.clusters.driver`.

The client has no Java: the folder in its first argument holds pyspark without what needs a JVM.
"""

import json
import sys
import threading

from pyspark.sql import SparkSession
from pyspark.util import is_remote_only

from tests.clusters.driver import answer, say


def main() -> None:
    """Answer all lines, then close the session."""
    assert is_remote_only()
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    answers, sys.stdout = sys.stdout, sys.stderr
    say(answers, number=-1, value=spark.version)
    for number, line in enumerate(sys.stdin):
        arguments = (answers, spark, number, json.loads(line))
        threading.Thread(target=answer, args=arguments, daemon=True).start()
    spark.stop()


if __name__ == "__main__":
    main()
