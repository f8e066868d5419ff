"""Fixtures: real Spark sessions, a root folder with a nasty name, and what a run leaves behind."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable
# Executors import the test modules' helpers from memory, but sparkdl itself must be installed.

from pyspark.sql import SparkSession

from tests.helpers.processes import eventually
from tests.helpers.spark import start_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Embedded Spark with two slots."""
    session = start_session("local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def lc() -> Iterator[SparkSession]:
    """Three executor processes with one slot each."""
    session = start_session("local-cluster[3,1,1024]", spark__executor__memory="1g")
    yield session
    session.stop()


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Where runs go: a path with a space, quotes and a letter that is not ASCII."""
    path = tmp_path / 'it\'s a "röot"'
    path.mkdir()
    return str(path)


@pytest.fixture(autouse=True)
def leave_the_slots_free() -> Iterator[None]:
    """A test that fails must not leave trials behind that hold the slots of those after it."""
    yield
    if active := SparkSession.getActiveSession():
        active.sparkContext.cancelAllJobs()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """A bucket of a real S3 protocol server on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    keys = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        assert eventually(answers)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in keys.items():
                patch.setenv(name, value)
            import s3fs

            s3fs.S3FileSystem().mkdir("bucket")
            yield "s3://bucket"
    finally:
        server.terminate()
        server.wait()
