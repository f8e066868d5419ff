"""Runs on the driver. Check, before Spark starts, the versions that are installed."""

import os
from collections.abc import Iterable, Iterator

from sparkdl.doctor.report import Check, check_of
from sparkdl.host.other_package import other_package
from sparkdl.host.supported_versions import WINDOWS, deviation
from sparkdl.spark.versions import mismatch, spark_to_start

_SUBJECTS = {"python": "Python", "pyspark": "Spark"}


def check_versions(names: Iterable[str] = WINDOWS) -> Iterator[Check]:
    """Yield a check for each package whose version is not supported, or newer than tested."""
    for name in names:
        if check := check_of(_SUBJECTS.get(name, "Packages"), deviation(name)):
            yield check


def check_other_package() -> Iterator[Check]:
    """Yield a check if another package has modules called `sparkdl`."""
    if check := check_of("Packages", other_package()):
        yield check


def check_spark_home() -> Iterator[Check]:
    """Yield a check if a new session would start another Spark than that of PySpark."""
    if not os.environ.get("SPARK_REMOTE") and (
        check := check_of("Spark", mismatch(spark_to_start(os.environ)))
    ):
        yield check
