"""Runs on the driver. Refuse versions of Spark, PySpark and Java that are not supported."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdl.errors import ConfigError
from sparkdl.host.other_package import other_package
from sparkdl.host.supported_versions import (
    WINDOWS,
    Deviation,
    check_versions,
    folder_of,
    installed,
    judge,
    parts_of,
    report,
)
from sparkdl.spark import java
from sparkdl.spark.connect import is_of_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What sparkdl needs to use Spark.
FOR_SPARK = ("python", "pyspark", "pyarrow")


def check_packages() -> None:
    """Validate the versions of Python and of the packages with which sparkdl uses Spark.

    Another package of the same name is reported.

    Raises:
        ConfigError: if one is too old.
    """
    check_versions(*FOR_SPARK)
    report([other_package()])


def check_start(environ: Mapping[str, str] = os.environ) -> None:
    """Validate what starts with a new session of classic Spark: the Spark, and its Java.

    Args:
        environ: the environment variables of the driver.

    Raises:
        ConfigError: if PySpark would start another Spark, or Spark another Java than it takes.
    """
    if "PYSPARK_GATEWAY_PORT" in environ:
        return  # `spark-submit` has started both.
    spark = spark_to_start(environ)
    try:
        path = java.find_java(spark_home(environ), environ)
        version = java.released_version(path) or java.printed_version(path, environ)
    except (FileNotFoundError, RuntimeError) as exc:
        raise ConfigError(f"{exc} {java.remedy_for(spark)}") from exc
    report([mismatch(spark), java.deviation(java.Java(path, version), spark)])


def check_session(spark: "SparkSession") -> None:
    """Validate the packages that drive a session, and the version of its Spark.

    Args:
        spark: the session.

    Raises:
        ConfigError: if a version is too old, or if PySpark drives another Spark. A server of Spark
            Connect may have another version than its client, which is reported.
    """
    check_packages()
    report(deviations(spark.version, is_of_connect(spark)))


def deviations(spark: str, is_connect: bool) -> list[Deviation]:
    """Return how the Spark of a session deviates from the supported ones, and from PySpark.

    Args:
        spark: the version of Spark, of which a vendor's may have more parts.
        is_connect: PySpark is a client of Spark Connect.
    """
    bounds = WINDOWS["pyspark"].bounds
    outside = judge(
        f"Spark {spark}", spark, bounds, f"Use a cluster with Spark {bounds[0]} or newer."
    )
    return [found for found in (outside, mismatch(spark, is_connect)) if found]


def mismatch(spark: str | None, is_connect: bool = False) -> Deviation | None:
    """Return how the PySpark that is installed deviates from a Spark; None if it does not.

    Args:
        spark: the version of Spark; None if it is unknown.
        is_connect: PySpark is a client of Spark Connect, whose server may have another version.
    """
    client = installed("pyspark")
    if not spark or not client or release_of(client) == release_of(spark):
        return None
    text = f"PySpark {client} drives Spark {spark}."
    remedy = f"Install the PySpark of that Spark: pip install 'pyspark=={release_of(spark)}.*'"
    if not is_connect:
        remedy += ", or unset SPARK_HOME."
    return Deviation(text, remedy, is_refused=not is_connect)


def release_of(version: str) -> str:
    """Return the release to which a version of Spark belongs.

    Example:
        >>> release_of("3.5.1-amzn-0")
        '3.5'
    """
    return ".".join(map(str, parts_of(version)[:2]))


def spark_home(environ: Mapping[str, str]) -> str:
    """Return the folder of the Spark that a new session would start."""
    return environ.get("SPARK_HOME") or folder_of("pyspark") or ""


def spark_to_start(environ: Mapping[str, str]) -> str | None:
    """Return the version of the Spark that a new session would start; None if it is not known."""
    for jar in Path(spark_home(environ), "jars").glob("spark-core_*.jar"):
        if match := re.fullmatch(r"spark-core_[\d.]+-(\d.*)\.jar", jar.name):
            return match[1]
    return installed("pyspark")
