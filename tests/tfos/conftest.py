"""A standalone Spark cluster of two one-core workers on loopback, and one session on it."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.helpers.processes import eventually
from tests.helpers.spark import Applications

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The master's URL."""
    folder, port = tmp_path_factory.mktemp("standalone"), _free_port()
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    deploy = "org.apache.spark.deploy"
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        command = [str(SPARK_CLASS), *arguments]
        with (folder / f"{name}.log").open("wb") as log:
            started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

    try:
        start("master", f"{deploy}.master.Master", *where, "--port", str(port))
        assert eventually(lambda: _listens(port), 60)
        for name in ("one", "two"):
            has = ["--cores", "1", "--memory", "2g", "--work-dir", str(folder / name)]
            start(name, f"{deploy}.worker.Worker", *where, *has, f"spark://127.0.0.1:{port}")
        yield f"spark://127.0.0.1:{port}"
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait()


@pytest.fixture(scope="session")
def standalone_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the runs on the standalone cluster."""
    return str(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def two(
    applications: Applications, standalone: str, standalone_root: str
) -> Iterator[SparkSession]:
    """A session with both workers as executors of one core each."""
    settings = {"spark__executor__memory": "1g", "spark__sparkdl__root": standalone_root}
    yield from applications.lend(standalone, **settings)
