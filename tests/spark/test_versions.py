"""The Spark of a session, the Spark and the Java that would start, and PySpark."""

import os
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from sparkdl.errors import ConfigError
from sparkdl.host.supported_versions import WINDOWS
from sparkdl.spark import java, versions
from sparkdl.spark.versions import check_session, check_start, spark_to_start

OLDEST = WINDOWS["pyspark"].oldest


def test_the_session_of_the_tests_is_supported(spark: SparkSession) -> None:
    check_session(spark)
    assert spark_to_start({}) == spark.version == pyspark.__version__
    check_start(os.environ)


def session(version: str, is_connect: bool) -> Any:
    module = "pyspark.sql.connect.session" if is_connect else "pyspark.sql.session"
    return type("SparkSession", (), {"__module__": module, "version": version})()


@pytest.mark.parametrize("version", ["4.1.1", "4.1.0-amzn-2", "4.1.3.7.2.18"])
def test_the_patch_of_a_vendor_is_the_same_spark(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "installed", {"pyspark": "4.1.4"}.get)
    check_session(session(version, is_connect=False))
    check_session(session(version, is_connect=True))


def test_pyspark_of_another_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", {"pyspark": "4.3.0"}.get)
    with pytest.raises(ConfigError) as error:
        check_session(session("4.0.2", is_connect=False))
    assert str(error.value) == (
        "PySpark 4.3.0 drives Spark 4.0.2. Install the PySpark of that Spark: pip install "
        "'pyspark==4.0.*', or unset SPARK_HOME."
    )


def test_a_server_of_connect_may_be_another_spark_but_no_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(versions, "installed", {"pyspark": "4.3.0"}.get)
    with pytest.warns(UserWarning, match=r"PySpark 4\.3\.0 drives Spark 4\.0\.2"):
        check_session(session("4.0.2", is_connect=True))
    with pytest.raises(ConfigError, match=rf"Spark 3\.4\.1 is too old.*Spark {OLDEST}"):
        check_session(session("3.4.1", is_connect=True))


def spark_home(folder: Path, jar: str, java_version: str) -> dict[str, str]:
    """Variables of a Spark and a Java that are only as much as their versions need."""
    jars, jdk = folder / "spark" / "jars", folder / "jdk"
    jars.mkdir(parents=True)
    (jars / jar).touch()
    (jdk / "bin").mkdir(parents=True)
    (jdk / "bin" / "java").touch(mode=0o755)
    (jdk / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{java_version}"\n')
    return {"SPARK_HOME": str(jars.parent), "JAVA_HOME": str(jdk)}


@pytest.mark.parametrize(
    ("jar", "java_version", "text"),
    [
        ("spark-core_2.12-3.5.1-amzn-0.jar", "1.8.0_392", None),
        ("spark-core_2.12-3.5.1.jar", "11.0.2", None),
        ("spark-core_2.13-3.5.1.jar", "21.0.1", "too new for Spark 3.5.1, which supports 8 to 17"),
        ("spark-core_2.13-4.0.0.jar", "21", None),
        (
            "spark-core_2.13-4.0.0.jar",
            "11.0.2",
            "Java 11 .* is too old for Spark 4.0.0, which",
        ),
        ("spark-core_2.13-4.0.0.jar", "1.8.0_392", "Java 8 .*Install Java 17 to 21, or set JAVA_H"),
    ],
)
def test_each_spark_has_its_javas(
    jar: str, java_version: str, text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = spark_home(tmp_path, jar, java_version)
    release = ".".join(str(spark_to_start(environ)).split(".")[:2])
    monkeypatch.setattr(versions, "installed", {"pyspark": f"{release}.9"}.get)
    if text is None:
        check_start(environ)
        return
    with pytest.raises(ConfigError, match=text):
        check_start(environ)


def test_a_spark_home_of_another_spark_is_refused(tmp_path: Path) -> None:
    environ = spark_home(tmp_path, "spark-core_2.12-3.5.1.jar", "17.0.15")
    with pytest.raises(ConfigError, match=r"drives Spark 3\.5\.1.*'pyspark==3\.5\.\*', or unset"):
        check_start(environ)
    check_start({**environ, "PYSPARK_GATEWAY_PORT": "4711"})


def test_a_newer_java_is_reported(tmp_path: Path) -> None:
    jar = f"spark-core_2.13-{pyspark.__version__}.jar"
    with pytest.warns(UserWarning, match=r"Java 99 .* is newer than 21, the newest that Spark"):
        check_start(spark_home(tmp_path, jar, "99.0.1"))


def test_a_java_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no Java: .*Install Java 17"):
        check_start({"PATH": str(tmp_path)})


def test_the_release_of_the_installed_java_is_what_it_prints() -> None:
    path = java.find_java(versions.spark_home({}), os.environ)
    assert java.released_version(path) == java.printed_version(path, os.environ)
