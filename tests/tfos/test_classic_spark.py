"""Spark Connect: the API of TensorFlowOnSpark can be imported there, and refuses to start."""

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.errors import ConfigError, PreflightError
from sparkdl.tfos import TFCluster, TFParallel, dfutil
from sparkdl.tfos.pipeline import TFEstimator

# pyspark-client has neither `pyspark.core` nor Py4J.
IMPORT_ALL = """
import importlib, sys
for name in ("pyspark.core", "py4j"):
    sys.modules[name] = None
import pyspark
assert not hasattr(pyspark, "SparkContext")
import sparkdl.tfos
for name in sparkdl.tfos.__all__:
    importlib.import_module(f"sparkdl.tfos.{name}")
"""


class RemoteSession:
    """A SparkSession or DataFrame of Spark Connect, as far as the functions look at it."""

    sparkSession = SimpleNamespace()
    columns = ("a",)


RemoteSession.__module__ = "pyspark.sql.connect.session"


def program(args: Any, ctx: Any) -> None:
    pass


CALLS: dict[str, Callable[[], Any]] = {
    "TFCluster.run": lambda: TFCluster.run(RemoteSession(), program, [], 1, 0),
    "TFParallel.run": lambda: TFParallel.run(RemoteSession(), program, [], 1),
    "TFEstimator.fit": lambda: TFEstimator(program, {})._fit(RemoteSession()),
    "dfutil.saveAsTFRecords": lambda: dfutil.saveAsTFRecords(RemoteSession(), "a"),  # type: ignore[arg-type]
    "dfutil.loadTFRecords": lambda: dfutil.loadTFRecords(RemoteSession(), "a"),
}


@pytest.mark.parametrize("name", CALLS)
def test_connect_is_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(PreflightError, match=rf"^{name} cannot run through Spark Connect: .*RDDs"):
        CALLS[name]()


def test_what_is_no_context_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"got sc=None; expected a SparkContext"):
        TFCluster.run(None, program, [], 1, 0)


def test_all_modules_are_imported_without_the_jvm_part_of_pyspark() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
