"""Runs on the driver. Check the Java that Spark would start."""

import os
from collections.abc import Mapping

from sparkdl.cluster.spark_context import has_java_part
from sparkdl.doctor.report import Check, check_of, fault, not_checked, ok
from sparkdl.spark import java
from sparkdl.spark.versions import spark_home, spark_to_start

SUBJECT = "Java"
NO_JAVA = "Spark Connect needs no Java on the driver"


def check_java(environ: Mapping[str, str] = os.environ) -> Check:
    """Check that there is a Java with which Spark starts.

    Args:
        environ: the environment variables of the driver.
    """
    if environ.get("SPARK_REMOTE"):
        return not_checked(SUBJECT, f"{NO_JAVA} (SPARK_REMOTE is set)")
    if not has_java_part():
        return not_checked(SUBJECT, f"{NO_JAVA} (only pyspark-client is installed)")
    spark = spark_to_start(environ)
    try:
        path = java.find_java(spark_home(environ), environ)
        version_of_java = java.Java(path, java.printed_version(path, environ))
    except (FileNotFoundError, RuntimeError) as exc:
        return fault(SUBJECT, str(exc), java.remedy_for(spark))
    return check_of(SUBJECT, java.deviation(version_of_java, spark)) or ok(
        SUBJECT, f"Java {version_of_java.version} ({path})"
    )
