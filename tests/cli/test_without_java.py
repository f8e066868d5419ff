"""A client of Spark Connect, which has no JVM part of PySpark, has the command line too."""

import subprocess
import sys

# pyspark-client has neither `pyspark.core` nor Py4J.
PROGRAM = """
import importlib, sys
for name in ("pyspark.core", "py4j"):
    sys.modules[name] = None
import pyspark
assert not hasattr(pyspark, "SparkContext")
for name in ("experiment", "distributed", "hdfs", "model", "util"):
    importlib.import_module(f"sparkdl.hops.{name}")
from sparkdl import MirroredStrategyRunner
from sparkdl.cli.main import main
from sparkdl.doctor.java import check_java
assert main(["runs", "--root", sys.argv[1]]) == 0
print(check_java({}).text)
"""


def test_the_command_line_works_with_the_client_of_spark_connect_only(root: str) -> None:
    command = [sys.executable, "-c", PROGRAM, root]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "only pyspark-client is installed" in done.stdout
