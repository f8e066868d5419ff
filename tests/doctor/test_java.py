"""The Java of the driver: none, one that is too old, one that is broken."""

import os
import sys
from pathlib import Path

import pytest

from sparkdl.doctor.java import check_java


def make_java(folder: Path, script: str) -> dict[str, str]:
    """Write a `java` into a folder `bin`, and return variables with which it is found."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return {"PATH": f"{java.parent}:/bin:/usr/bin"}


def test_missing_java_is_a_fault(tmp_path: Path) -> None:
    check = check_java({"PATH": str(tmp_path)})
    assert check.state == "fault"
    assert "PATH has no java" in check.text
    assert check.remedy.startswith("Install Java 17")
    check = check_java({"PATH": os.environ["PATH"], "JAVA_HOME": str(tmp_path)})
    assert check.text == f"JAVA_HOME is {tmp_path}, and there is no program {tmp_path}/bin/java."


@pytest.mark.parametrize(
    ("printed", "state", "text"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "fault", "Java 11 ("),
        ('java version "1.8.0_392"', "fault", "Java 8 ("),
        ('openjdk version "27" 2026-09-15', "note", "is newer than 21, the newest that Spark 4."),
        ('openjdk version "21" 2023-09-19', "ok", "Java 21 ("),
        ('openjdk version "17.0.15" 2025-04-15', "ok", "Java 17.0.15 ("),
        ("Unrecognized option", "fault", "has failed: Unrecognized option"),
    ],
)
def test_version_of_java(tmp_path: Path, printed: str, state: str, text: str) -> None:
    check = check_java(make_java(tmp_path, f"echo '{printed}' >&2"))
    assert (check.state, text in check.text) == (state, True), check
    home = check_java({"PATH": "", "JAVA_HOME": str(tmp_path)})
    assert home == check


def test_java_that_fails_is_a_fault(tmp_path: Path) -> None:
    environ = make_java(tmp_path, "echo 'Error: could not open libjvm.so' >&2; exit 1")
    assert "has failed: Error: could not open libjvm.so" in check_java(environ).text
    Path(tmp_path, "bin", "java").write_bytes(Path(sys.executable).read_bytes()[:100])
    assert "cannot be run" in check_java(environ).text


def test_java_in_the_settings_of_spark_is_found(tmp_path: Path) -> None:
    make_java(tmp_path / "jdk", "echo 'openjdk version \"21.0.1\"' >&2")
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-env.sh").write_text(f"echo noise\nJAVA_HOME={tmp_path}/jdk\n")
    check = check_java({"PATH": "/bin", "SPARK_CONF_DIR": str(conf)})
    assert check.text == f"Java 21.0.1 ({tmp_path}/jdk/bin/java)"


def test_spark_connect_needs_no_java() -> None:
    assert check_java({"SPARK_REMOTE": "sc://host"}).state == "skipped"
