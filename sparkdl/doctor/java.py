"""Runs on the driver. Find the Java that Spark would start, and check its version."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pyspark

from sparkdl.cluster.spark_context import has_java_part
from sparkdl.doctor.report import Check, fault, ok, skipped

__all__ = ["NO_JAVA", "check_java"]

MIN_JAVA = 17
SUBJECT = "Java"
NO_JAVA = "Spark Connect needs no Java on the driver"
# A Java that prints its version takes a fraction of a second.
TIMEOUT_S = 60.0

_INSTALL = f"Install Java {MIN_JAVA} or newer, or set JAVA_HOME to its folder."


def check_java(environ: Mapping[str, str] = os.environ) -> Check:
    """Check that there is a Java with which Spark starts.

    Spark takes the Java in `JAVA_HOME`, which its own `spark-env.sh` may set, and without that
    variable the first one in `PATH`.

    Args:
        environ: the environment variables of the driver.
    """
    if environ.get("SPARK_REMOTE"):
        return skipped(SUBJECT, f"{NO_JAVA} (SPARK_REMOTE is set)")
    if not has_java_part():
        return skipped(SUBJECT, f"{NO_JAVA} (only pyspark-client is installed)")
    home = environ.get("JAVA_HOME") or _home_of_settings(environ)
    if home:
        java = str(Path(home, "bin", "java"))
        if not os.access(java, os.X_OK):
            return fault(SUBJECT, f"JAVA_HOME is {home}, and there is no program {java}.", _INSTALL)
    else:
        java = shutil.which("java", path=environ.get("PATH", "")) or ""
        if not java:
            return fault(
                SUBJECT, "There is no Java: JAVA_HOME is not set, and PATH has no java.", _INSTALL
            )
    return _check_version(java, environ)


def _home_of_settings(environ: Mapping[str, str]) -> str:
    """Return the `JAVA_HOME` that Spark's own settings have; empty without one."""
    spark = environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    settings = Path(environ.get("SPARK_CONF_DIR") or Path(spark, "conf"), "spark-env.sh")
    if not settings.is_file():
        return ""
    read = '. "$0" >/dev/null 2>&1; printf %s "$JAVA_HOME"'
    done = subprocess.run(
        ["/bin/bash", "-c", read, str(settings)],
        env={**environ, "SPARK_HOME": spark},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return done.stdout


def _check_version(java: str, environ: Mapping[str, str]) -> Check:
    try:
        done = subprocess.run(
            [java, "-version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return fault(SUBJECT, f"{java} cannot be run: {exc}.", _INSTALL)
    output = done.stderr + done.stdout
    # Java 8 calls itself 1.8.
    match = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', output)
    if done.returncode or not match:
        first = (output.strip().splitlines() or ["no output"])[0]
        return fault(SUBJECT, f"{java} -version has failed: {first}", _INSTALL)
    if int(match[1]) < MIN_JAVA:
        text = f"{java} is Java {match[1]}, and Spark needs Java {MIN_JAVA} or newer."
        return fault(SUBJECT, text, _INSTALL)
    return ok(SUBJECT, f"Java {match[1]}{match[2]} ({java})")
