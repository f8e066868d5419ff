"""A driver that watches a log, and hangs when it tells of drift: python watching.py OPTIONS.

OPTIONS is a file of JSON with the arguments of `watch`, and `told`, the file to write an alert to.
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sparkdl import monitoring


def main(path: str) -> None:
    options = json.loads(Path(path).read_text())
    told = Path(options.pop("told"))

    def hang(alert: Any) -> None:
        told.write_text(json.dumps(alert))
        threading.Event().wait()

    SparkSession.builder.master("local[2]").config("spark.jars", options.pop("jars")).getOrCreate()
    monitoring.watch(**options, alerts=hang, available_now=True)


if __name__ == "__main__":
    main(sys.argv[1])
