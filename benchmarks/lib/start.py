"""Time the start of a distributed function that only notes the time, for `start.py`.

The module runs in the environments of sparkdl and of its peers, so it imports only pyspark.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

RANKS = 2

# A contender starts a function on all ranks, calls it with a folder, and waits for its end.
Contender = Callable[[Callable[[str], None], str], None]


def session() -> SparkSession:
    """Return a session with an executor of one core for each rank."""
    builder = SparkSession.builder.master(f"local-cluster[{RANKS},1,1024]").appName("start")
    builder = builder.config("spark.ui.enabled", "false").config("spark.executor.memory", "1g")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def make_function() -> Callable[[str], None]:
    """Return the function of a rank. An inner function is pickled by value."""

    def note_time(folder: str) -> None:
        import os
        import time
        from pathlib import Path

        Path(folder, str(os.getpid())).write_text(str(time.time()))

    return note_time


def measure(contender: Contender) -> dict[str, float]:
    """Return the seconds from the call to the first line of the last rank, and to the return."""
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        called_s = time.time()
        contender(make_function(), folder)
        returned_s = time.time()
        first_lines = [float(path.read_text()) for path in Path(folder).iterdir()]
    if len(first_lines) != RANKS:
        raise RuntimeError(f"{len(first_lines)} ranks ran, expected {RANKS}")
    return {"first_line_s": max(first_lines) - called_s, "return_s": returned_s - called_s}
