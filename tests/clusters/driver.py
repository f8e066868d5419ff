"""A driver's process: run functions of programs, as lines on the standard input ask for them.

Each line is `{"call": "<module>:<function>", "kwargs": {...}}`. The function is called in a thread
with the Spark session as its first argument, and answered by a line of the standard output:
`{"number": 0, "value": ...}` or `{"number": 0, "error": "..."}`.
"""

import importlib
import json
import sys
import threading
import traceback
from typing import Any

from pyspark.sql import SparkSession


def main() -> None:
    """Answer all lines, then stop Spark."""
    builder = SparkSession.builder.appName("tests")
    for name, value in json.loads(sys.argv[1]).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    answers = sys.stdout
    sys.stdout = sys.stderr  # Programs print.
    say(answers, number=-1, value=spark.sparkContext.applicationId)
    threads = []
    for number, line in enumerate(sys.stdin):
        arguments = (answers, spark, number, json.loads(line))
        threads.append(threading.Thread(target=answer, args=arguments, daemon=True))
        threads[-1].start()
    spark.stop()


def answer(answers: Any, spark: SparkSession, number: int, request: Any) -> None:
    """Call one function, and write its value or its error."""
    module, name = request["call"].split(":")
    try:
        value = getattr(importlib.import_module(module), name)(spark, **request["kwargs"])
        say(answers, number=number, value=value)
    except BaseException as exc:
        error = f"{type(exc).__name__}: {exc}"
        say(answers, number=number, error=error, trace=traceback.format_exc())


def say(answers: Any, **record: Any) -> None:
    """Write one line."""
    answers.write(json.dumps(record) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
