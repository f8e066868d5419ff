"""Runs on the driver. The Java that Spark would start, and the Javas that Spark takes."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkdl.host.supported_versions import Deviation, judge, parts_of

# A Java that prints its version takes a fraction of a second.
TIMEOUT_S = 60.0

# The oldest and the newest Java of each major version of Spark. Spark 3.5 starts with a newer one,
# but then cannot pass record batches to Python; Spark 4 may learn to work with a newer one.
_JAVA = {3: ("8", "17"), 4: ("17", "21")}


@dataclass(frozen=True)
class Java:
    """A program `java`.

    Attributes:
        path: its path.
        version: its version, such as 17.0.15; that of Java 8 begins with 8.
    """

    path: str
    version: str


def remedy_for(spark: str | None) -> str:
    """Return the way to a Java for a version of Spark."""
    oldest, newest = _bounds(spark)
    return f"Install Java {oldest} to {newest}, or set JAVA_HOME to the folder of one."


def deviation(java: Java, spark: str | None) -> Deviation | None:
    """Return how a Java deviates from those that Spark takes; None if it does not.

    Args:
        java: the Java.
        spark: the version of Spark; None if it is unknown.

    Example:
        >>> print(deviation(Java("/jdk/bin/java", "11.0.2"), "4.1.0").text)
        Java 11 (/jdk/bin/java) is too old for Spark 4.1.0, which supports 17 to 21.
        >>> deviation(Java("/jdk/bin/java", "11.0.2"), "3.5.9")
    """
    return judge(
        f"Java {parts_of(java.version)[0]} ({java.path})",
        java.version,
        _bounds(spark),
        remedy_for(spark),
        user=f"Spark {spark or ''}".strip(),
        ends=_bounds(spark) == _JAVA[3],
    )


def _bounds(spark: str | None) -> tuple[str, str]:
    """Return the oldest and the newest Java; of a Spark of tomorrow those of today's."""
    major = next(iter(parts_of(spark or "")), max(_JAVA))
    return _JAVA[3] if major <= 3 else _JAVA[4]


def find_java(spark_home: str, environ: Mapping[str, str]) -> str:
    """Return the path of the Java with which Spark starts.

    Spark takes the Java in `JAVA_HOME`, which its own `spark-env.sh` may set, and without that
    variable the first one in `PATH`.

    Args:
        spark_home: the folder of Spark.
        environ: the environment variables of the driver.

    Raises:
        FileNotFoundError: if there is none.
    """
    home = environ.get("JAVA_HOME") or _home_of_settings(spark_home, environ)
    if home:
        java = str(Path(home, "bin", "java"))
        if not os.access(java, os.X_OK):
            raise FileNotFoundError(f"JAVA_HOME is {home}, and there is no program {java}.")
        return java
    java = shutil.which("java", path=environ.get("PATH", "")) or ""
    if not java:
        raise FileNotFoundError("There is no Java: JAVA_HOME is not set, and PATH has no java.")
    return java


def _home_of_settings(spark_home: str, environ: Mapping[str, str]) -> str:
    """Return the `JAVA_HOME` that Spark's own settings have; empty without one."""
    settings = Path(environ.get("SPARK_CONF_DIR") or Path(spark_home, "conf"), "spark-env.sh")
    if not settings.is_file():
        return ""
    script = '. "$0" >/dev/null 2>&1; printf %s "$JAVA_HOME"'
    process = subprocess.run(
        ["/bin/bash", "-c", script, str(settings)],
        env={**environ, "SPARK_HOME": spark_home},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return process.stdout


def released_version(java: str) -> str | None:
    """Return the version of a Java by the file `release` in its folder; None without that file."""
    folder = Path(os.path.realpath(java)).parents[1]
    for file in (folder / "release", folder.parent / "release"):  # That of a JRE in its JDK.
        try:
            match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d[^"]*)"', file.read_text(), re.MULTILINE)
        except OSError:
            continue
        if match:
            return match[1]
    return None


def printed_version(java: str, environ: Mapping[str, str]) -> str:
    """Return the version that a Java prints.

    Args:
        java: the path of the program.
        environ: its environment variables.

    Raises:
        RuntimeError: if it cannot be run, or fails; the message says why.
    """
    try:
        process = subprocess.run(
            [java, "-version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise RuntimeError(f"{java} cannot be run: {exc}.") from exc
    output = process.stderr + process.stdout
    # Java 8 calls itself 1.8.
    match = re.search(r'version "(?:1\.)?(\d[^"]*)"', output)
    if process.returncode or not match:
        first = (output.strip().splitlines() or ["no output"])[0]
        raise RuntimeError(f"{java} -version has failed: {first}")
    return match[1]
